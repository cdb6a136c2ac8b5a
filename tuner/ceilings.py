"""What a device reaches at most, measured: a large GEMM's rate and a copy's.

They are the roof of a roofline: what a datasheet promises is not reached. Of scaled
GEMMs those of fp8 with one scale, or one a row, are measured, with the fast
accumulation that torch may choose; this has run on CPUs alone. Of MX formats, whose
scales each device wants laid out in its own way, nothing is.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from flytune.tuner.operands import FP8_STD

GEMM_SIZES = {"cpu": 2048, "cuda": 8192}
"""Rows, columns and depth, by torch's type of the device."""
SCALED = ("tensorwise", "rowwise")
"""The schemes of scaling that are measured."""
_COPIED_BYTES = 2**28
_REPEATS = 5


def measure_ceilings(kind: str, types: Mapping[str, str]) -> dict[str, Any]:
    """Return `copy_gb_s`, of reading and writing, and `gemm_tflops` by type.

    What torch does not multiply on the device is left out.

    Args:
        kind: torch's type of the device.
        types: What the multipliers work on, as `type_of`: the elements' type of each,
            such as "float8_e4m3fn" of "tensorwise".
    """
    copy_s = _copy_s(kind)
    size = GEMM_SIZES[kind]
    tflops = {}
    for name, dtype in sorted(types.items()):
        if name not in (dtype, *SCALED):
            continue
        try:
            gemm_s = _seconds(_gemm(kind, name, dtype, size), kind)
        except (RuntimeError, ValueError):
            # torch raises either for types and schemes that a device lacks.
            continue
        tflops[name] = round(2 * size**3 / gemm_s / 1e12, 3)
    return {
        "copy_gb_s": round(2 * _COPIED_BYTES / copy_s / 1e9, 1),
        "gemm_tflops": tflops,
    }


def _gemm(kind: str, name: str, dtype: str, size: int) -> Callable[[], Any]:
    """Return a product of two random matrices, [size, size] each.

    Raises:
        RuntimeError: torch has no such product on the device.
        ValueError: the same, of a scheme of scaling.
    """
    import torch

    # Values have a say in the power that a GEMM takes, and so in its clock.
    a, b = (torch.randn(size, size, device=kind) for _ in range(2))
    if name not in SCALED:
        a, b = (one.to(getattr(torch, dtype)) for one in (a, b))
        return functools.partial(torch.mm, a, b, out=a @ b)
    a, b = ((FP8_STD * one).to(getattr(torch, dtype)) for one in (a, b))
    # B has its columns dense, as a linear's weight that is seen transposed.
    scale_a, scale_b = (
        torch.full(sizes if name == "rowwise" else (), 1 / FP8_STD, device=kind)
        for sizes in ((size, 1), (1, size))
    )
    return functools.partial(
        torch._scaled_mm,
        *(a, b.t(), scale_a, scale_b),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def _copy_s(kind: str) -> float:
    import torch

    source = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=kind)
    target = torch.empty_like(source)
    return _seconds(lambda: target.copy_(source), kind)


def _seconds(call: Callable[[], Any], kind: str) -> float:
    """Return the shortest time of a call, after one that is not counted."""
    import torch

    def wait() -> None:
        if kind != "cpu":
            torch.cuda.synchronize()

    taken = []
    for _ in range(1 + _REPEATS):
        wait()
        start = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - start)
    return min(taken[1:])
