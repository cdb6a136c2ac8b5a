"""Which of torch's own FlyDSL kernels a program runs, and their compilation.

torch takes them for few sizes; which ones is asked of torch, by the functions that it
decides by itself.

`python -m flytune.tuner.eager_flydsl REQUEST RESULT` is the process that compiles them.
"""

import json
import pickle
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flytune.caches.child import clean_environment, die_with_parent, run_module
from flytune.caches.compat import private
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.flydsl_eager import RMS_NORM, TOPK, EagerKernel
from flytune.caches.flydsl_kernel import BLIND
from flytune.caches.policy import ServingPolicy
from flytune.caches.records import Status
from flytune.tuner.candidate import BuildResult, failure
from flytune.tuner.flydsl_builder import checked, prepare

_NORM_RULES = "torch._native.ops.norm.flydsl_rmsnorm_impl"
_NORM_TYPES = "torch._native.ops.norm.flydsl_rmsnorm_utils"
_TOPK_RULES = "torch._native.ops.topk.flydsl_impl"
_SPAN = "torch._native.flydsl_utils"
MODULE = "flytune.tuner.eager_flydsl"
OPS = ("rmsnorm", "topk")
"""As `--ops` names them."""
# Of top-k, what a kernel may be for; torch says for which of them it has one.
_POWERS = tuple(2**power for power in range(1, 11))


@dataclass(frozen=True, slots=True)
class EagerBuild:
    """One kernel and what became of it."""

    kernel: EagerKernel
    result: BuildResult


def build_all_eager(
    ops: Iterable[str],
    sizes: Mapping[str, Any],
    policy: ServingPolicy,
    profile: DeviceProfile,
    place: Path,
) -> tuple[EagerBuild, ...]:
    """Compile what torch itself would take for a model's sizes, in a fresh process.

    Args:
        ops: Some of `OPS`.
        sizes: `hidden` and `vocabulary`, elements of a row; the norm's `dtype`.
        place: Directory in which to make what FlyDSL links with.

    Raises:
        FlytuneError: the process failed.
    """
    request = {
        "ops": list(ops),
        "sizes": dict(sizes),
        "tokens": list(policy.tokens),
        "profile": profile.to_json(),
        "place": str(place.absolute()),
    }
    with tempfile.TemporaryDirectory(prefix="flytune-eager-") as directory:
        result = Path(directory) / "built.pickle"
        env = clean_environment(policy, Path(directory) / "cache", **BLIND)
        run_module(MODULE, request, result, env, what="compiling torch's own kernels")
        found: tuple[EagerBuild, ...] = pickle.loads(result.read_bytes())
    return found


def kernels_for(
    ops: Iterable[str],
    sizes: Mapping[str, Any],
    tokens: Iterable[int],
    profile: DeviceProfile,
) -> Iterator[EagerKernel]:
    """Yield each kernel that torch takes for the sizes at some of the token counts.

    Raises:
        FlytuneError: this torch has no such kernels.
    """
    found: dict[EagerKernel, None] = {}
    for rows in tokens:
        taken: list[EagerKernel | None] = []
        if "rmsnorm" in ops:
            n, dtype = sizes["hidden"], sizes["dtype"]
            taken.append(rms_norm_kernel(n, dtype, rows, profile))
        if "topk" in ops:
            n = sizes["vocabulary"]
            taken += [topk_kernel(n, k, rows, profile) for k in _POWERS]
        found |= {kernel: None for kernel in taken if kernel is not None}
    yield from found


def rms_norm_kernel(
    n: int, dtype: str, rows: int, profile: DeviceProfile
) -> EagerKernel | None:
    """Return the kernel that torch takes for an RMSNorm, or None if it takes ATen's.

    Args:
        n: Elements of a row.
        dtype: Of input and weight, such as "bfloat16".

    Raises:
        FlytuneError: this torch has no such kernel.
    """
    names = {str(t) for t in private(_NORM_TYPES, "SUPPORTED_DTYPES")[2]}
    if f"torch.{dtype}" not in names or not _is_for(_NORM_RULES, profile):
        return None
    if not private(_SPAN, "_fits_int32_buffer_span")[2](rows, n, _bytes(dtype)):
        return None
    if not private(_NORM_RULES, "_fused_rms_norm_fwd_perf_wins")[2](rows, n):
        return None
    return EagerKernel(RMS_NORM, n, dtype)


def topk_kernel(
    n: int, k: int, rows: int, profile: DeviceProfile, *, deterministic: bool = False
) -> EagerKernel | None:
    """Return the kernel that torch takes for a top-k, or None if it takes ATen's.

    Args:
        n: Elements of a row, which must be float32.
        deterministic: Whether torch is told to use deterministic algorithms.

    Raises:
        FlytuneError: this torch has no such kernel.
    """
    kind = private(_TOPK_RULES, "_kernel_for")[2](k, n)
    fits = private(_TOPK_RULES, "_fits_topk_buffer_span")[2]
    # `_min_rows_for_full_wave` asks the device, which is not here.
    wave = int(profile.properties["multi_processor_count"])
    if not _is_for(_TOPK_RULES, profile) or kind is None or rows < wave:
        return None
    if not fits(rows, n, k, _bytes("float32")):
        return None
    # The other kernel is the same either way.
    return EagerKernel(TOPK, n, k=k, deterministic=deterministic and kind == "radix")


def build_eager(kernel: EagerKernel, profile: DeviceProfile) -> BuildResult:
    """Compile one of torch's own kernels and return the file that holds it.

    The result has the kernel's name for a choice hash. As with a candidate the process
    must have a cache directory of its own, and a failure is a result.
    """
    start = time.perf_counter()
    try:
        prepare(profile.arch)
        files = checked(kernel.precompile(), profile)
    except Exception as error:  # a compiler may fail in any way
        return BuildResult(kernel.name, *failure(error, Status.COMPILE_ERROR))
    seconds = time.perf_counter() - start
    return BuildResult(kernel.name, Status.OK, compile_s=seconds, files=files)


def _is_for(rules: str, profile: DeviceProfile) -> bool:
    return profile.arch in private(rules, "_SUPPORTED_ARCHES")[2]


def _bytes(dtype: str) -> int:
    import torch

    made: torch.dtype = getattr(torch, dtype)
    return made.itemsize


def main() -> None:
    """Compile what the request names, and write what became of each, pickled."""
    die_with_parent()
    request_path, result_path = map(Path, sys.argv[1:3])
    request = json.loads(request_path.read_text())
    profile = DeviceProfile.from_json(request["profile"])
    prepare(profile.arch, Path(request["place"]))
    kernels = kernels_for(request["ops"], request["sizes"], request["tokens"], profile)
    built = tuple(
        EagerBuild(kernel, build_eager(kernel, profile)) for kernel in kernels
    )
    part = result_path.with_suffix(".part")
    part.write_bytes(pickle.dumps(built))
    part.replace(result_path)


if __name__ == "__main__":
    # By its name, so that what is pickled is of the module that reads it.
    from flytune.tuner.eager_flydsl import main as run

    run()
