"""The proof that FlyDSL finds its kernels in a directory: asked of FlyDSL, anew.

`python -m flytune.caches.flydsl_cache REQUEST RESULT` is the process that asks.
"""

import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flytune.caches.child import die_with_parent, plain_environment, run_module
from flytune.caches.directories import RUN_ONLY
from flytune.caches.flydsl_eager import EagerKernel
from flytune.caches.flydsl_kernel import (
    BLIND,
    FOREIGN,
    FlyDSLKernel,
    lookups,
    objects_of,
    require_flydsl,
    set_environment,
)
from flytune.shapes.errors import FlytuneError

MODULE = "flytune.caches.flydsl_cache"
Kernel = FlyDSLKernel | EagerKernel
"""Inductor's, and those that torch runs by itself."""


def missing_entries(
    cache_dir: Path, kernels: Iterable[Kernel], arch: str
) -> tuple[str, ...]:
    """Return why kernels would not be found, a line an entry; none proves that all are.

    A fresh process looks each up as serving does, in FlyDSL's mode that compiles
    nothing (`FLYDSL_RUNTIME_RUN_ONLY`). It writes lock files beside the entries.

    Args:
        cache_dir: What `TORCHINDUCTOR_CACHE_DIR` will name; it must be writable.
        arch: Of the device, such as "gfx950".

    Raises:
        FlytuneError: FlyDSL is not installed, or cannot be asked.
    """
    require_flydsl()
    request = {
        "cache_dir": str(cache_dir.absolute()),
        "arch": arch,
        "kernels": [kernel.to_json() for kernel in kernels],
    }
    env = {k: v for k, v in plain_environment().items() if k not in FOREIGN}
    env |= BLIND
    with tempfile.TemporaryDirectory(prefix="flytune-flydsl-") as directory:
        result = Path(directory) / "result.json"
        run_module(MODULE, request, result, env, what="looking for FlyDSL's kernels")
        return tuple(json.loads(result.read_text()))


def _looked_up(kernels: Iterable[Kernel], arch: str) -> tuple[str, ...]:
    """Return a line an entry that is not there, with who asks for it."""
    asking: dict[str, list[str]] = {}
    for kernel in kernels:
        if why := _why_missing(kernel, arch):
            asking.setdefault(why, []).append(kernel.name)
    return tuple(
        f"{why}: {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}"
        for why, names in asking.items()
    )


def _why_missing(kernel: Kernel, arch: str) -> str:
    """Return why one kernel is not found; nothing if it is."""
    said, looked_for = "", lookups()
    looked_for.clear()
    try:
        kernel.precompile()
    except FlytuneError:
        raise
    except Exception as error:  # FlyDSL's refusal, or what a module says of its shape
        said = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    entries = set(looked_for)
    if len(entries) != 1:
        return said or f"FlyDSL looked for {len(entries)} entries"
    (path,) = entries
    name = f"{path.parent.name}/{path.name}"
    if not path.exists():
        return f"FlyDSL kernel is absent: {name}"
    try:
        objects_of(path.read_bytes(), arch)
    except (OSError, ValueError) as error:
        return f"FlyDSL kernel is not one: {name}: {error}"
    return f"FlyDSL kernel is refused: {name}: {said}" if said else ""


def read_kernel(row: dict[str, Any]) -> Kernel:
    """Read the form of a kernel's `to_json`, whichever kind it is.

    Raises:
        KeyError, TypeError, ValueError: it is of neither.
    """
    kind = EagerKernel if "op" in row else FlyDSLKernel
    return kind.from_json(row)


def main() -> None:
    """Look the request's kernels up, and write a list of those that are missing."""
    die_with_parent()
    request_path, result_path = map(Path, sys.argv[1:3])
    request = json.loads(request_path.read_text())
    cache_dir, arch = Path(request["cache_dir"]), request["arch"]
    set_environment(cache_dir, arch, **{RUN_ONLY: "1"})
    kernels = map(read_kernel, request["kernels"])
    missing = _looked_up(kernels, arch)
    result_path.write_text(json.dumps(missing))


if __name__ == "__main__":
    main()
