from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from op_lists import (
    FP8,
    GROUPS,
    LISTS,
    K,
    M,
    N,
    cpu_scales_rows,
    dense,
    grouped,
    listed,
    scaled,
    weight,
)

from flytune.tuner.accuracy import judge
from flytune.tuner.candidate import CandidateList
from flytune.tuner.kernels import in_order
from flytune.tuner.operands import (
    Operands,
    Problem,
    UnsupportedError,
    make_operands,
    problem,
)


def wrong(operands: Operands, output: torch.Tensor) -> bool:
    """Whether a kernel that gives `output` is found out."""
    output = output.bfloat16()
    return bool(judge(output, output, operands.reference, operands.tolerance)[1])


@pytest.mark.parametrize("name", LISTS)
def test_operands_come_in_the_lists_order(name: str) -> None:
    made = LISTS[name]
    operands = make_operands(made, seed=3)
    tensors = in_order(made, operands, operands.b)
    assert [(t.shape, t.stride(), str(t.dtype)) for t in tensors] == [
        (spec.sizes, spec.strides, f"torch.{spec.dtype}") for spec in made.inputs
    ]
    assert operands.reference.shape == made.output.sizes
    assert operands.is_weight == (name != "bmm")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mm", Problem(1, 0, M, N, K)),
        ("addmm", Problem(1, 0, M, N, K)),
        ("bmm", Problem(3, 0, M, N, K)),
        ("scaled_mm", Problem(1, 0, M, N, K)),
        ("grouped_mm", Problem(1, GROUPS, M, N, K)),
        ("grouped_mm 3d", Problem(1, GROUPS, GROUPS * M, N, K)),
    ],
)
def test_sizes_are_counted_as_in_a_plan(name: str, sizes: Problem) -> None:
    assert problem(LISTS[name]) == sizes


def test_fp8_values_are_finite_and_use_the_range() -> None:
    for seed in range(5):
        operands = make_operands(scaled(), seed)
        for raw in (operands.a.float(), operands.b.float()):
            assert raw.isfinite().all()
            assert 100 < raw.abs().max() <= 448
            assert len(raw.unique()) > 150


def test_few_fp8_values_are_finite() -> None:
    # Below 16 elements torch draws with more bits, whose largest value is larger.
    made = listed("mm", dense(1, 1), dense(1, 3, dtype=FP8), weight(3, 1, dtype=FP8))
    for seed in range(200):
        assert make_operands(made, seed).a.float().isfinite().all()


@pytest.mark.parametrize("shapes", [((M, 1), (1, N)), ((), ()), ((1,), (1,))])
def test_scales_are_positive_and_no_two_alike(
    shapes: tuple[tuple[int, ...], ...],
) -> None:
    operands = make_operands(scaled(*shapes), seed=1)
    for scale, shape in zip((operands.scale_a, operands.scale_b), shapes, strict=True):
        assert scale is not None
        assert scale.shape == shape
        assert scale.dtype == torch.float32
        assert (scale > 0).all()
        assert len(scale.unique()) == scale.numel()
        # None that is left out would go unseen.
        assert scale.max() < 0.1


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shapes", [((M, 1), (1, N)), ((), ()), ((1,), (1,))])
def test_scaled_reference_is_what_torch_computes(
    shapes: tuple[tuple[int, ...], ...], bias: bool
) -> None:
    if shapes[0] == (M, 1) and not cpu_scales_rows():
        pytest.skip("no such kernel in this torch")
    made = scaled(*shapes, bias=bias)
    operands = make_operands(made, seed=2)
    output = torch._scaled_mm(
        *in_order(made, operands, operands.b), out_dtype=torch.bfloat16
    )
    assert not wrong(operands, output)


def test_scaled_reference_is_the_sum_of_dequantised_products() -> None:
    # The newer call has B's scales as a column.
    operands = make_operands(scaled(scale_b=(N, 1), bias=True), seed=4)
    assert operands.scale_a is not None
    assert operands.scale_b is not None
    assert operands.bias is not None
    a = operands.a.double() * operands.scale_a.double()
    b = operands.b.double() * operands.scale_b.double().reshape(1, N)
    want = a @ b + operands.bias.double()
    assert operands.reference.dtype == torch.float32
    torch.testing.assert_close(operands.reference.double(), want, rtol=1e-4, atol=1e-5)


def without_row_scale(x: Operands, product: torch.Tensor) -> torch.Tensor:
    assert x.scale_a is not None
    scale = x.scale_a.clone()
    scale[7] = scale[8]
    return product * scale * x.scale_b + x.bias


SLIPS: dict[str, Callable[[Operands, torch.Tensor], torch.Tensor]] = {
    "row scale": without_row_scale,
    "scale of A": lambda x, product: product * x.scale_b + x.bias,
    "scale of B": lambda x, product: product * x.scale_a + x.bias,
    "bias": lambda x, product: product * x.scale_a * x.scale_b,
    "columns turned": lambda x, product: (
        product * x.scale_a * x.scale_b.roll(1) + x.bias  # type: ignore[union-attr]
    ),
    "last tile": lambda x, _: (
        x.a[:, :-32].float() @ x.b[:-32].float() * x.scale_a * x.scale_b + x.bias
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_in_a_scaled_product_is_found(slip: str) -> None:
    operands = make_operands(scaled(bias=True), seed=1)
    product = operands.a.float() @ operands.b.float()
    assert wrong(operands, SLIPS[slip](operands, product))


@pytest.mark.parametrize(
    ("m", "groups"), [(48, 4), (1, 8), (5, 8), (1000, 128), (7, 1)]
)
@pytest.mark.parametrize("seed", [1, 2, 7])
def test_offsets_cut_all_rows_into_uneven_groups(
    m: int, groups: int, seed: int
) -> None:
    offsets = make_operands(grouped(m=m, groups=groups), seed).offsets
    assert offsets is not None
    assert offsets.dtype == torch.int32
    assert offsets[-1] == m
    sizes = offsets.diff(prepend=torch.zeros(1, dtype=torch.int32))
    assert (sizes >= 0).all()
    assert groups == 1 or (sizes == 0).any()
    assert groups == 1 or len(sizes.unique()) > 1


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_grouped_reference_is_what_torch_computes(dtype: str, ragged: bool) -> None:
    made = grouped(ragged, dtype=dtype)
    operands = make_operands(made, seed=2)
    a, b, *offsets = in_order(made, operands, operands.b)
    output = torch._grouped_mm(a, b, *offsets)
    error, fault = judge(output, output, operands.reference, operands.tolerance)
    assert (fault, error <= operands.tolerance) == ("", True)


def test_grouped_reference_is_each_groups_product() -> None:
    operands = make_operands(grouped(), seed=5)
    assert operands.offsets is not None
    ends = operands.offsets.tolist()
    for row in range(M):
        group = next(at for at, end in enumerate(ends) if row < end)
        want = operands.a[row].float() @ operands.b[group].float()
        torch.testing.assert_close(operands.reference[row], want)


@pytest.mark.parametrize("ragged", [True, False])
def test_one_wrong_group_is_found(ragged: bool) -> None:
    operands = make_operands(grouped(ragged), seed=1)
    assert not wrong(operands, operands.reference)
    ends = operands.offsets.tolist() if operands.offsets is not None else range(GROUPS)
    starts = [0, *ends[:-1]]
    for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
        rows = slice(start, end) if ragged else group
        other = operands.b[(group + 1) % GROUPS].float()
        output = operands.reference.clone()
        output[rows] = operands.a[rows].float() @ other
        empty = ragged and start == end
        assert wrong(operands, output) is not empty


def test_one_row_of_the_next_group_is_found() -> None:
    operands = make_operands(grouped(), seed=1)
    assert operands.offsets is not None
    last = int(operands.offsets[0]) - 1
    output = operands.reference.clone()
    output[last] = operands.a[last].float() @ operands.b[-1].float()
    assert wrong(operands, output)


BLOCKS = scaled(scale_a=(M, 2), scale_b=(2, 1))
UNKNOWN: list[tuple[Any, str]] = [
    (BLOCKS, r"no reference for scales: float32 \(48, 2\)"),
    (
        replace(
            LISTS["scaled_mm"],
            inputs=tuple(
                replace(s, dtype="float8_e8m0fnu") if s.dtype == "float32" else s
                for s in LISTS["scaled_mm"].inputs
            ),
        ),
        r"no reference for scales: float8_e8m0fnu \(48, 1\)",
    ),
    (scaled(dtype="float4_e2m1fn_x2"), r"no reference for scales: float32 \(48, 1\)"),
    (
        listed(
            *("grouped_mm", dense(GROUPS, M, N), dense(M, K), weight(K, N)),
            dense(GROUPS, dtype="int32"),
        ),
        "no reference for grouped_mm: 2d x 2d",
    ),
    (
        listed("grouped_mm", dense(M, N), dense(M, K), weight(GROUPS, K, N)),
        "no reference for grouped_mm: 2d x 3d",
    ),
    (replace(LISTS["grouped_mm"], op="scaled_grouped_mm"), "op: scaled_grouped_mm"),
]


@pytest.mark.parametrize(("made", "said"), UNKNOWN)
def test_what_has_no_reference_is_unsupported(made: CandidateList, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        make_operands(made, seed=1)
