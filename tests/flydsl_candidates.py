"""Inductor's own FlyDSL candidates for gfx950, from `data/flydsl_candidates.json`.

`python flydsl_candidates.py CACHE RESULT` writes FlyDSL's own entry of each, named
without compiling.
"""

import importlib.util
import inspect
import json
import multiprocessing
import os
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from flytune.caches.device_profile import DeviceProfile
from flytune.caches.directories import RUN_ONLY
from flytune.caches.flydsl_kernel import FlyDSLKernel, lookups, set_environment
from flytune.tuner.builder import build
from flytune.tuner.candidate import FLYDSL, BuildResult, Candidate, TensorSpec
from flytune.tuner.flydsl_keys import build_key

DATA = Path(__file__).parent / "data" / "flydsl_candidates.json"
ARCH = "gfx950"
PROFILE = DeviceProfile(
    kind="cuda",
    vendor="amd",
    arch=ARCH,
    properties={
        "name": "a device of gfx950",
        "gcnArchName": "gfx950:sramecc+:xnack-",
        "major": 9,
        "minor": 5,
        "warp_size": 64,
        "multi_processor_count": 256,
        "L2_cache_size": 4 * 2**20,
        "total_memory": 288 * 2**30,
    },
    max_shared_bytes=160 * 2**10,
    captured_with={"hip": "7.2.26015"},
)


class Rendered(NamedTuple):
    """One candidate as Inductor rendered it."""

    case: str
    """Its op, type and sizes."""
    kernel: FlyDSLKernel

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(*tensor) for tensor in self.kernel.tensors)

    @property
    def key(self) -> str:
        return build_key(self.kernel.source, self.specs[:-1])

    def candidate(self, **changes: str) -> Candidate:
        """Return what the probe makes of it; `changes` replace text of the source.

        `TORCHINDUCTOR_CACHE_DIR` must be set: Inductor writes the module there.
        """
        source = self.kernel.source
        for old, new in changes.items():
            source, count = re.subn(rf"(?m)^{old}: .*$", f"{old}: {new}", source)
            assert count == 1
        return Candidate(
            backend=FLYDSL,
            template="mm_flydsl",
            config="{}",
            choice_hash=self.kernel.name,
            request=_request(self.kernel, source),
            build_key=build_key(source, self.specs[:-1]),
        )


def _request(kernel: FlyDSLKernel, source: str) -> bytes:
    import torch
    from torch._inductor.autotune_process import FlyDSLBenchmarkRequest, TensorMeta

    *inputs, output = (
        TensorMeta(
            device=torch.device("cuda", 0),
            dtype=getattr(torch, tensor.dtype),
            sizes=tensor.sizes,
            strides=tensor.strides,
            offset=0,
        )
        for tensor in kernel.tensors
    )
    rendered = SimpleNamespace(finalize_all=lambda: source)
    made = FlyDSLBenchmarkRequest(kernel.function, inputs, output, (), rendered)
    return pickle.dumps(made)


def rendered() -> tuple[Rendered, ...]:
    """Return all of them."""
    data = json.loads(DATA.read_text())
    return tuple(_of(row, data["templates"]) for row in data["candidates"])


def of_case(case: str) -> tuple[Rendered, ...]:
    """Return those of one op, type and sizes."""
    return tuple(one for one in rendered() if one.case == case)


def _of(row: Mapping[str, Any], templates: Mapping[str, str]) -> Rendered:
    values = iter(row["values"].split())
    source = re.sub("@", lambda _: next(values), templates[row["template"]])
    kernel = {
        "name": row["choice_hash"],
        "function": row["function"],
        "source": source,
        "tensors": row["tensors"],
    }
    return Rendered(row["case"], FlyDSLKernel.from_json(kernel))


def builder(folder: Path) -> ProcessPoolExecutor:
    """A process of its own that builds, and sees no device."""
    return ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=blind,
        initargs=(str(folder),),
    )


def blind(folder: str) -> None:
    """Be such a process; what its parent's shell may have set must not matter."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["FLYDSL_GPU_ARCH"] = "gfx942"
    os.environ["HSA_OVERRIDE_GFX_VERSION"] = "9.4.2"
    os.environ["ARCH"] = "x86_64"
    os.environ["FLYDSL_RUNTIME_ENABLE_CACHE"] = "0"


def plainly(candidate: Candidate) -> BuildResult:
    """Build anew, without the memory of positions."""
    for path in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.pkl"):
        path.unlink()
    spec = importlib.util.find_spec("inspect")
    assert spec is not None
    assert spec.loader is not None
    unchanged: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unchanged)
    changed: Any = inspect
    fast = changed._get_code_position
    changed._get_code_position = unchanged._get_code_position
    assert fast is not unchanged._get_code_position
    try:
        return build(candidate, PROFILE)
    finally:
        changed._get_code_position = fast


def with_rocm(root: str, candidate: Candidate) -> BuildResult:
    """Build with another linker, which FlyDSL looks for at each compilation."""
    good = os.environ["ROCM_PATH"]
    os.environ["ROCM_PATH"] = root
    try:
        return build(candidate, PROFILE)
    finally:
        os.environ["ROCM_PATH"] = good


def place(results: Mapping[str, BuildResult], root: Path) -> Path:
    """Write the files of what was built as a cache directory; return it."""
    for result in results.values():
        for name, content in result.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return root


def entry_of(result: BuildResult) -> str:
    """Return the one file of a result."""
    (name,) = result.files
    return name


def named_entry(precompile: Callable[[], object]) -> str:
    """Return the entry that FlyDSL looks for, in a process that compiles nothing."""
    lookups().clear()
    with pytest.raises(RuntimeError, match="no usable AOT cache"):
        precompile()
    (path,) = set(lookups())
    return f"{path.parent.name}/{path.name}"


def main() -> None:
    cache, result = map(Path, sys.argv[1:3])
    set_environment(cache, ARCH, **{RUN_ONLY: "1"})
    entries = [named_entry(one.kernel.precompile) for one in rendered()]
    result.write_text(json.dumps(entries))


if __name__ == "__main__":
    main()
