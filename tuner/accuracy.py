"""Whether a candidate computes the right thing; it must before it may win."""

from typing import TYPE_CHECKING

from flytune.caches.session import relative_error

if TYPE_CHECKING:
    import torch

# Largest error over the reference's largest value. Twice the rounding of the result's
# type, and as much again for what a fused kernel rounds in between; a wrong K tile of
# 32 in 28,672 already errs by more.
TOLERANCES = {"bfloat16": 0.01, "float16": 0.002, "float32": 1e-4}


def judge(
    first: "torch.Tensor", second: "torch.Tensor", reference: "torch.Tensor"
) -> tuple[float, str]:
    """Return (relative error, fault) of two launches; the fault is empty when right.

    Args:
        first: Output of a launch into a buffer of NaN.
        second: Output of a later launch.
        reference: The result in higher precision, of the same shape.
    """
    tolerance = TOLERANCES[str(first.dtype).removeprefix("torch.")]
    error = relative_error(first, reference)
    if not error <= tolerance:  # NaN compares false
        return error, f"relative error {error:.3g} exceeds {tolerance:g}"
    again = relative_error(second, first)
    if not again <= tolerance:
        return error, f"a second launch differs by {again:.3g}"
    return error, ""
