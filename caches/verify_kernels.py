"""Prove that FlyDSL finds the kernels of a bundle which was only compiled.

No graph is baked without the device, so no program can be run; but each kernel that a
candidate asks for can be looked up as serving would, in another place and in FlyDSL's
mode that compiles nothing.
"""

import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from flytune.caches.bundle import Bundle
from flytune.caches.expected import CACHES
from flytune.caches.flydsl_cache import Kernel, missing_entries, read_kernel
from flytune.caches.trust import HERE, Trust, admit
from flytune.caches.verdict import Verdict
from flytune.shapes.errors import FlytuneError

ASKED_NAME = "flydsl.json"
"""Who asks for a kernel of FlyDSL's: one of each, in a bundle of compiled ones."""


def write_asked(kernels: Iterable[Kernel], path: Path) -> None:
    """Write what will be looked for."""
    path.write_text(json.dumps([kernel.to_json() for kernel in kernels]) + "\n")


def verify_kernels(bundle: Bundle, trust: Trust = HERE) -> Verdict:
    """Look up every FlyDSL kernel of a compiled bundle, in a fresh process.

    Raises:
        UntrustedError: nobody vouches for the bundle here.
        FlytuneError: it is corrupt or holds none, or FlyDSL is not here.
    """
    admit(bundle, trust)
    if ASKED_NAME not in bundle.manifest.files:
        raise FlytuneError(
            "nothing to verify: the bundle holds bare kernels for a build, none of "
            "them FlyDSL's",
            hint="where the device is: flytune build --from BUNDLE",
        )
    with tempfile.TemporaryDirectory(prefix="flytune-verify-") as directory:
        placed = Path(directory) / "bundle"
        bundle.place(placed)
        return looked_up(placed, str(bundle.manifest.target["hardware"]["arch"]))


def looked_up(placed: Path, arch: str) -> Verdict:
    """Look up the kernels of a bundle's unpacked files.

    Raises:
        FlytuneError: the list of kernels is damaged, or FlyDSL is not here.
    """
    try:
        kernels = [
            read_kernel(r) for r in json.loads((placed / ASKED_NAME).read_text())
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FlytuneError(f"bundle's kernels cannot be read: {ASKED_NAME}") from error
    cache_dir = placed / CACHES
    cache_dir.mkdir(exist_ok=True)
    start = time.perf_counter()
    missing = missing_entries(cache_dir, kernels, arch)
    return Verdict(
        failures=missing,
        uncacheable=(),
        work={},
        aside={},
        lookups={
            name: count
            for name, count in (
                ("flydsl hit", len(kernels) - len(missing)),
                ("flydsl miss", len(missing)),
            )
            if count
        },
        first_call_s=time.perf_counter() - start,
        worst_error=None,
        peak_gib=0.0,
    )
