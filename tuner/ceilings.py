"""What a device reaches at most, measured: a large GEMM's rate and a copy's.

They are the roof of a roofline: what a datasheet promises is not reached.
"""

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

GEMM_SIZES = {"cpu": 2048, "cuda": 8192}
"""Rows, columns and depth, by torch's type of the device."""
_COPIED_BYTES = 2**28
_REPEATS = 5


def measure_ceilings(kind: str, dtypes: Iterable[str]) -> dict[str, Any]:
    """Return `copy_gb_s`, of reading and writing, and `gemm_tflops` by type.

    A type that torch does not multiply on the device is left out.

    Args:
        kind: torch's type of the device.
        dtypes: Such as "bfloat16".
    """
    import torch

    copy_s = _copy_s(kind)
    size = GEMM_SIZES[kind]
    tflops = {}
    for dtype in sorted(set(dtypes)):
        try:
            # Values have a say in the power that a GEMM takes, and so in its clock.
            a, b = (
                torch.randn(size, size, device=kind).to(getattr(torch, dtype))
                for _ in range(2)
            )
            out = a @ b
            gemm_s = _seconds(functools.partial(torch.mm, a, b, out=out), kind)
        except RuntimeError:
            continue
        tflops[dtype] = round(2 * size**3 / gemm_s / 1e12, 3)
    return {
        "copy_gb_s": round(2 * _COPIED_BYTES / copy_s / 1e9, 1),
        "gemm_tflops": tflops,
    }


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
