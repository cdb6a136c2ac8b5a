"""Operands in the OCP microscaling formats, and the values that they stand for.

Source: OCP Microscaling Formats (MX) Specification v1.0: blocks of 32 elements of a row
share a scale, a power of two held as its biased exponent (E8M0); an E2M1 element has
one of eight magnitudes. torch packs two in a byte, the first in the lower half.
"""

import math
from typing import TYPE_CHECKING

from flytune.shapes.gemm import FP4, MX_BLOCK

if TYPE_CHECKING:
    import torch

E8M0 = "float8_e8m0fnu"
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of the lower three bits; the fourth is the sign."""
_BIAS = 127
# The root of the mean square over all codes.
FP4_STD = math.sqrt(sum(value**2 for value in E2M1) / len(E2M1))
_CODES = 2**16


def random_codes(sizes: list[int], seed: int, device: str) -> "torch.Tensor":
    """Return packed E2M1 elements, every code as likely as any other.

    The values repeat after a number of bytes that meets no tile's size.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    pattern = torch.randint(0, 256, (_CODES + 1,), generator=generator)
    count = math.prod(sizes)
    repeated = pattern.byte().repeat(-(-count // len(pattern)))[:count]
    return repeated.reshape(sizes).to(device).view(getattr(torch, FP4))


def random_scales(
    sizes: tuple[int, ...], std: float, seed: int, device: str
) -> "torch.Tensor":
    """Return scales about `std`: half of it, itself and twice as much, at random."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    middle = _BIAS + round(math.log2(std))
    exponents = torch.randint(middle - 1, middle + 2, sizes, generator=generator)
    return exponents.byte().to(device).view(getattr(torch, E8M0))


def dequantized(
    rows: "torch.Tensor", scales: "torch.Tensor", wide: "torch.dtype"
) -> "torch.Tensor":
    """Return what elements and their blocks' scales stand for.

    Args:
        rows: [rows, K] of FP8, or [rows, K / 2] of packed E2M1.
        scales: [rows, K / 32], E8M0.
        wide: The type of the result, [rows, K].
    """
    import torch

    if rows.dtype == getattr(torch, FP4):
        codes = rows.contiguous().view(torch.uint8)
        pairs = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).long()
        signed = torch.tensor(E2M1 + tuple(-value for value in E2M1), dtype=wide)
        values = signed.to(rows.device)[pairs]
    else:
        values = rows.to(wide)
    each = scales.float().to(wide).repeat_interleave(MX_BLOCK, dim=-1)
    return values * each


def scaled_product(
    a: "torch.Tensor",
    b: "torch.Tensor",
    scale_a: "torch.Tensor",
    scale_b: "torch.Tensor",
    wide: "torch.dtype",
    step: int,
) -> "torch.Tensor":
    """Return the product of what A and B stand for, some columns at a time.

    Args:
        a: [M, K], or K / 2 packed.
        b: The same of [K, N].
        scale_a: [M, K / 32].
        scale_b: [N, K / 32].
        step: Columns at a time.
    """
    import torch

    left = dequantized(a, scale_a, wide)
    parts = zip(b.t().split(step), scale_b.split(step), strict=True)
    return torch.cat([left @ dequantized(*part, wide).t() for part in parts], dim=-1)
