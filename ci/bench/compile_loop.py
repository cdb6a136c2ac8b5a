"""The peer of the workers: one process that compiles candidates one after another.

It calls what a user's own loop would: for FlyDSL the function that Inductor renders
into the module to warm FlyDSL's cache, for Triton its kernel's `precompile`.
"""

import inspect
import pickle
import tempfile
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from processes import answer

from flytune.caches.device_profile import DeviceProfile
from flytune.caches.flydsl_kernel import set_environment
from flytune.tuner.builder import load_triton, set_triton_target
from flytune.tuner.candidate import FLYDSL, Candidate
from flytune.tuner.rocm_tools import rocm_for_flydsl


def _loop(request: dict[str, Any]) -> dict[str, Any]:
    """Compile the candidates of a file into a new directory; return what it took."""
    candidates = pickle.loads(Path(request["candidates"]).read_bytes())
    profile = DeviceProfile.from_json(request["profile"])
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        cache = Path(directory)
        rocm = rocm_for_flydsl(cache)
        set_environment(cache, profile.arch, ROCM_PATH=str(rocm))
        start = time.perf_counter()
        failures = _compiled(candidates, profile)
        return {"seconds": time.perf_counter() - start, "failures": failures}


def _compiled(candidates: Sequence[Candidate], profile: DeviceProfile) -> int:
    """Compile all; return how many failed."""
    failures = 0
    for candidate in candidates:
        try:
            if candidate.backend == FLYDSL:
                _flydsl(candidate, profile.arch)
            else:
                set_triton_target(profile)
                load_triton(candidate).precompile(warm_cache_only=True)
        except Exception as error:  # a compiler may fail in any way
            print(f"{candidate.choice_hash}: {type(error).__name__}: {error}")
            failures += 1
    return failures


def _flydsl(candidate: Candidate, arch: str) -> None:
    request = pickle.loads(candidate.request)
    module = types.ModuleType("candidate")
    exec(compile(request.source_code, "<candidate>", "exec"), module.__dict__)
    main = getattr(module, f"{request.kernel_name}_main")
    names = [n[4:] for n in inspect.signature(main).parameters if n.startswith("arg_")]
    tensors = (*request.input_tensor_meta, request.output_tensor_meta)
    metas = dict(zip((*names, "output"), tensors, strict=True))
    getattr(module, f"{request.kernel_name}_precompile")(
        {name: list(meta.sizes) for name, meta in metas.items()},
        {name: list(meta.strides) for name, meta in metas.items()},
        {name: str(meta.dtype)[6:] for name, meta in metas.items()},
        flydsl_gpu_arch=arch,
    )


if __name__ == "__main__":
    answer(_loop)
