"""Operands in microscaling formats against their definition, one element at a time."""

from collections.abc import Callable

import pytest
import torch
from op_lists import FP8, K, M, N, microscaled

from flytune.shapes.gemm import FP4, MX_BLOCK
from flytune.tuner.accuracy import judge
from flytune.tuner.microscaling import dequantized
from flytune.tuner.operands import Operands, make_operands, problem

TYPES = (FP4, FP8)


def element(rows: torch.Tensor, row: int, column: int) -> float:
    """Return one element by the formula of the format."""
    if rows.dtype != torch.float4_e2m1fn_x2:
        return float(rows[row, column].float())
    byte = int(rows.contiguous().view(torch.uint8)[row, column // 2])
    code = byte >> 4 if column % 2 else byte & 15
    exponent, mantissa = code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else 2 ** (exponent - 1) * (1 + mantissa / 2)
    return -size if code >> 3 else size


def scaled_element(rows: torch.Tensor, scales: torch.Tensor, row: int, k: int) -> float:
    exponent = int(scales.view(torch.uint8)[row, k // MX_BLOCK]) - 127
    return element(rows, row, k) * 2.0**exponent


@pytest.mark.parametrize("dtype", TYPES)
def test_the_reference_is_the_sum_of_scaled_elements(dtype: str) -> None:
    made = make_operands(microscaled(dtype), seed=1)
    assert problem(microscaled(dtype)).k == K
    assert made.reference.shape == (M, N)
    assert made.scale_a is not None
    assert made.scale_b is not None
    for m, n in ((0, 0), (M - 1, N - 1), (17, 40)):
        want = sum(
            scaled_element(made.a, made.scale_a, m, k)
            * scaled_element(made.b.t(), made.scale_b, n, k)
            for k in range(K)
        )
        assert float(made.reference[m, n]) == pytest.approx(want, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("dtype", TYPES)
def test_operands_are_laid_out_as_inductor_lists_them(dtype: str) -> None:
    offered = microscaled(dtype)
    made = make_operands(offered, seed=1)
    for tensor, spec in zip(
        (made.a, made.b, made.scale_a, made.scale_b), offered.inputs, strict=True
    ):
        assert tensor is not None
        assert (tuple(tensor.shape), tensor.stride()) == (spec.sizes, spec.strides)
        assert str(tensor.dtype) == f"torch.{spec.dtype}"
    # A weight that is copied for each turn stays what it is.
    copy = made.b.clone(memory_format=torch.preserve_format)
    assert copy.stride() == made.b.stride()


@pytest.mark.parametrize("dtype", TYPES)
def test_scales_differ_and_values_are_of_a_weights_size(dtype: str) -> None:
    made = make_operands(microscaled(dtype), seed=2)
    assert made.scale_b is not None
    assert len(made.scale_b.view(torch.uint8).unique()) == 3
    weight = dequantized(made.b.t(), made.scale_b, torch.float32)
    assert 0.01 < float(weight.std()) < 0.08


def next_block(made: Operands) -> torch.Tensor:
    assert made.scale_a is not None
    moved = made.scale_a.view(torch.uint8).roll(1, dims=1).view(made.scale_a.dtype)
    return dequantized(made.a, moved, torch.float32) @ of_b(made)


def other_half(made: Operands) -> torch.Tensor:
    assert made.scale_a is not None
    codes = made.a.view(torch.uint8)
    swapped = (codes << 4 | codes >> 4).view(made.a.dtype)
    return dequantized(swapped, made.scale_a, torch.float32) @ of_b(made)


def no_scale(made: Operands) -> torch.Tensor:
    assert made.scale_a is not None
    ones = torch.full_like(made.scale_a.view(torch.uint8), 127)
    return dequantized(made.a, ones.view(made.scale_a.dtype), torch.float32) @ of_b(
        made
    )


def of_b(made: Operands) -> torch.Tensor:
    assert made.scale_b is not None
    return dequantized(made.b.t(), made.scale_b, torch.float32).t()


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        (FP4, next_block),
        (FP8, next_block),
        (FP4, other_half),
        (FP4, no_scale),
        (FP8, no_scale),
    ],
)
def test_a_kernel_that_reads_them_otherwise_is_wrong(
    dtype: str, wrong: Callable[[Operands], torch.Tensor]
) -> None:
    made = make_operands(microscaled(dtype), seed=3)
    right = made.reference.bfloat16()
    assert judge(right, right, made.reference, made.tolerance)[1] == ""
    output = wrong(made).bfloat16()
    assert "exceeds" in judge(output, output, made.reference, made.tolerance)[1]
