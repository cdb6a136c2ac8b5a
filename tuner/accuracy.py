"""Whether a candidate computes the right thing; it must before it may win."""

from typing import TYPE_CHECKING

from flytune.caches.rounds import relative_error
from flytune.shapes.gemm import FP4

if TYPE_CHECKING:
    import torch

# Largest error over the reference's largest value. Twice the rounding of the result's
# type, and as much again for what a fused kernel rounds in between; a wrong K tile of
# 32 in 28,672 already errs by more.
TOLERANCES = {"bfloat16": 0.01, "float16": 0.002, "float32": 1e-4}
# Of fp8 results: half a unit in the last of e4m3's 3 bits and of e5m2's 2, which is
# all that a right sum can lose, and an eighth more where the sum itself errs.
FP8 = {"float8_e4m3fn": 0.07, "float8_e5m2": 0.14}
# What fp8 inputs add for each element of K. Hopper sums 32 of their products a step and
# cuts the sum to 13 bits of fraction (reports on DeepSeek-V3, arXiv 2412.19437, and on
# SageAttention2, 2411.10958); few kernels add up elsewhere. Emulated with random values
# that errs by 0.6 to 0.9 of 2**-15 a step. A wrong K tile of 128 in 28,672 errs by half
# as much again as the tolerance.
FP8_DRIFT = 2.0**-20


# Of microscaling's packed elements: what gfx950 cuts of a sum is not published, and the
# same is allowed.
_SUMMED = frozenset({*FP8, FP4})


class NoToleranceError(Exception):
    """No error is known to be right for a type; the message names it."""


def tolerance(inputs: str, output: str, k: int) -> float:
    """Return the largest relative error of a right kernel.

    Args:
        inputs: Type of the operands, such as "float8_e4m3fn".
        output: Type of the result.
        k: Products that are summed.

    Raises:
        NoToleranceError: one of the types is not known.
    """
    known = TOLERANCES | FP8
    for name, names in ((inputs, {*known, FP4}), (output, known)):
        if name not in names:
            raise NoToleranceError(f"no tolerance for type: {name}")
    return known[output] + (k * FP8_DRIFT if inputs in _SUMMED else 0.0)


def judge(
    first: "torch.Tensor",
    second: "torch.Tensor",
    reference: "torch.Tensor",
    tolerance: float | None = None,
) -> tuple[float, str]:
    """Return (relative error, fault) of two launches; the fault is empty when right.

    Args:
        first: Output of a launch into a buffer of NaN.
        second: Output of a later launch.
        reference: The result in higher precision, of the same shape.
        tolerance: Largest error of a right kernel; None for that of the output's type.
    """
    name = str(first.dtype).removeprefix("torch.")
    if tolerance is None:
        tolerance = (TOLERANCES | FP8)[name]
    error = relative_error(first, reference)
    if not error <= tolerance:  # NaN compares false
        return error, f"relative error {error:.3g} exceeds {tolerance:.3g}"
    # torch has no maximum of fp8 values.
    again = relative_error(second, first.float() if name in FP8 else first)
    if not again <= tolerance:
        return error, f"a second launch differs by {again:.3g}"
    return error, ""
