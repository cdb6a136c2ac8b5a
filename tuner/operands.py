"""The tensors of one GEMM, for every op that is tuned, and what they must give."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flytune.caches.weights import WEIGHT_STD, fill_random
from flytune.shapes.gemm import FP4, MX_BLOCK
from flytune.tuner.accuracy import FP8, NoToleranceError, tolerance
from flytune.tuner.candidate import CandidateList, TensorSpec
from flytune.tuner.microscaling import (
    E8M0,
    FP4_STD,
    random_codes,
    random_scales,
    scaled_product,
)
from flytune.tuner.reference import REFERENCE_ROWS, fused_with, grouped_product, product
from flytune.tuner.reference import UnsupportedError as UnsupportedError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Places:
    """Where an op's inputs stand in Inductor's list, -1 for what it never has.

    What is optional comes last. The names are those of `Operands`.
    """

    a: int = 0
    b: int = 1
    bias: int = -1
    other: int = -1
    scale_a: int = -1
    scale_b: int = -1
    offsets: int = -1


# Source: the lowerings in torch/_inductor/kernel/{mm,bmm,mm_grouped}.py and
# mkldnn_lowerings.py. Scalars, such as alpha and out_dtype, are in the request.
POSITIONS = {
    "mm": Places(),
    "bmm": Places(),
    "addmm": Places(bias=0, a=1, b=2),
    "scaled_mm": Places(scale_a=2, scale_b=3, bias=4),
    "grouped_mm": Places(offsets=2),
    "linear_unary": Places(bias=2),
    "linear_binary": Places(other=1, b=2, bias=3),
    # Between the two stands the weight once more, as MKL packs it.
    "packed_linear": Places(b=2),
}
LINEARS = frozenset({"linear_unary", "linear_binary", "packed_linear"})
# Of raw fp8 values: wide enough to use most of e4m3's 448, and finite, as no normal
# value that torch draws is beyond 8.6 deviations.
FP8_STD = 48.0


@dataclass(frozen=True, slots=True)
class Operands:
    """One GEMM's tensors, dense, and what they must give."""

    a: "torch.Tensor"
    """[M, K], [batch, M, K] for bmm, or [groups, M, K] for grouped_mm."""
    b: "torch.Tensor"
    """[K, N] (a linear's weight [N, K] seen transposed), or as many as there are
    batches or groups."""
    bias: "torch.Tensor | None"
    other: "torch.Tensor | None"
    """What a fused binary op adds, [M, N]."""
    scale_a: "torch.Tensor | None"
    """What A's raw values are multiplied by: one for all, one a row, or one a block of
    a row's elements, [M, K / 32]."""
    scale_b: "torch.Tensor | None"
    """The same of B: one for all, one a column, or [N, K / 32]."""
    offsets: "torch.Tensor | None"
    """Where each group's rows of A end."""
    reference: "torch.Tensor"
    """The result in float32, or float64 for float32 inputs, before the cast."""
    tolerance: float
    """Largest error that a right kernel may have, as `judge` measures it."""
    is_weight: bool
    """Whether B is a weight, which serving reads from memory at every call."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The sizes of a list, as `GemmShape` counts them."""

    batch: int
    groups: int
    m: int
    """All groups' rows together."""
    n: int
    k: int
    """However its elements are packed."""


def problem(offered: CandidateList) -> Problem:
    """Return the sizes of a list.

    Raises:
        UnsupportedError: the op is not one that the runner knows.
    """
    places = _places(offered)
    *lead, m, k = offered.inputs[places.a].sizes
    n = offered.output.sizes[-1]
    if offered.inputs[places.a].dtype == FP4:
        k *= 2
    if offered.op == "grouped_mm":
        of_each = _spec(offered, places.offsets) or offered.inputs[places.b]
        groups = of_each.sizes[0]
        return Problem(1, groups, math.prod(lead) * m, n, k)
    return Problem(math.prod(lead), 0, m, n, k)


def make_operands(offered: CandidateList, seed: int, device: str = "cpu") -> Operands:
    """Return random operands of a list and their reference result.

    Args:
        device: torch's type of the device that they are made on.

    Raises:
        UnsupportedError: the op, what is fused to it, a type or a layout is not one
            that is known.
    """
    places, sizes = _places(offered), problem(offered)
    _check_ranks(offered, places)
    limit = _tolerance(offered, places, sizes.k)

    def tensor(at: int) -> "torch.Tensor | None":
        spec = _spec(offered, at)
        return None if spec is None else _tensor(spec, 1.0, seed + at, device)

    is_weight = offered.op != "bmm"
    std = WEIGHT_STD if is_weight else 1.0
    spec_b = offered.inputs[places.b]
    linear = offered.op in LINEARS
    if linear:
        # A packed weight's strides are no strides: it is dense [N, K] when made.
        spec_b = TensorSpec(spec_b.sizes, (spec_b.sizes[1], 1), spec_b.dtype)
    b = _tensor(spec_b, std, seed + places.b, device)
    a = tensor(places.a)
    assert a is not None
    made = Operands(
        a=a,
        b=b.t() if linear else b,
        bias=tensor(places.bias),
        other=tensor(places.other),
        scale_a=_scale(offered, places.a, places.scale_a, sizes.m, 1.0, seed, device),
        scale_b=_scale(
            offered, places.b, places.scale_b, sizes.n, std, seed + 1, device
        ),
        offsets=_offsets(_spec(offered, places.offsets), sizes, seed, device),
        reference=a,
        tolerance=limit,
        is_weight=is_weight,
    )
    return replace(made, reference=_result(offered, made))


def _result(offered: CandidateList, made: Operands) -> "torch.Tensor":
    """Return what the operands must give, before the cast."""
    import torch

    fused = fused_with(offered)
    wide = torch.float64 if made.a.dtype == torch.float32 else torch.float32
    a, b, scale_a, scale_b = made.a, made.b, made.scale_a, made.scale_b
    if offered.op == "grouped_mm":
        result = grouped_product(a, b, made.offsets, wide)
    elif scale_a is None or scale_b is None:
        result = product(a, b, wide)
    elif scale_a.dtype == getattr(torch, E8M0):
        result = scaled_product(a, b, scale_a, scale_b, wide, REFERENCE_ROWS)
    else:
        result = product(a, b, wide)
        result = result * _per(scale_a, (-1, 1)) * _per(scale_b, (1, -1))
    if made.bias is not None:
        result = result + made.bias.to(wide)
    return fused(result, None if made.other is None else made.other.to(wide))


def _check_ranks(offered: CandidateList, places: Places) -> None:
    """Refuse grouped_mm whose groups are not of rows: they cut K or N instead."""
    if offered.op != "grouped_mm":
        return
    rank_a, rank_b = (len(offered.inputs[at].sizes) for at in (places.a, places.b))
    rows = 3 if _spec(offered, places.offsets) is None else 2
    if (rank_a, rank_b) != (rows, 3):
        raise UnsupportedError(f"no reference for grouped_mm: {rank_a}d x {rank_b}d")


def _places(offered: CandidateList) -> Places:
    if offered.op not in POSITIONS:
        raise UnsupportedError(f"no runner for op: {offered.op}")
    return POSITIONS[offered.op]


def _spec(offered: CandidateList, at: int) -> TensorSpec | None:
    return offered.inputs[at] if 0 <= at < len(offered.inputs) else None


def _tolerance(offered: CandidateList, places: Places, k: int) -> float:
    types = [offered.inputs[at].dtype for at in (places.a, places.b)]
    try:
        return max(tolerance(one, offered.output.dtype, k) for one in types)
    except NoToleranceError as error:
        raise UnsupportedError(str(error)) from error


def _tensor(spec: TensorSpec, std: float, seed: int, device: str) -> "torch.Tensor":
    import torch

    dtype = getattr(torch, spec.dtype)
    # A broadcast dimension, whose stride is 0, is one row seen many times.
    sizes = [
        size if stride else 1
        for size, stride in zip(spec.sizes, spec.strides, strict=True)
    ]
    if spec.dtype == FP4:
        # A packed weight is dense along K, whichever way it is seen.
        turned = spec.strides[-1] != 1
        codes = random_codes(sizes[::-1] if turned else sizes, seed, device)
        return codes.t() if turned else codes
    values = torch.empty(sizes, dtype=dtype, device=device)
    fill_random(values, seed=seed, std=FP8_STD if spec.dtype in FP8 else std)
    if values.stride() == spec.strides:
        return values
    laid_out = torch.empty_strided(sizes, spec.strides, dtype=dtype, device=device)
    return laid_out.copy_(values).expand(spec.sizes)


def _scale(
    offered: CandidateList,
    of: int,
    at: int,
    count: int,
    std: float,
    seed: int,
    device: str,
) -> "torch.Tensor | None":
    """Return scales that differ, and that bring raw values to a deviation of `std`.

    Args:
        of: Where the operand stands whose scales they are.
        at: Where they stand themselves.
        count: The operand's rows, or columns of B.

    Raises:
        UnsupportedError: they are neither one for all nor `count` nor a block's, or of
            another type.
    """
    import torch

    spec = _spec(offered, at)
    if spec is None:
        return None
    packed = offered.inputs[of].dtype == FP4
    if spec.dtype == E8M0:
        blocks = problem(offered).k // MX_BLOCK
        if spec.sizes != (count, blocks) or spec.strides != (blocks, 1):
            raise UnsupportedError(f"no reference for scales: {E8M0} {spec.sizes}")
        raw = FP4_STD if packed else FP8_STD
        return random_scales(spec.sizes, std / raw, seed, device)
    number = math.prod(spec.sizes)
    if packed or number not in (1, count) or spec.dtype != "float32":
        raise UnsupportedError(f"no reference for scales: {spec.dtype} {spec.sizes}")
    generator = torch.Generator().manual_seed(seed)
    values = (torch.rand(spec.sizes, generator=generator) + 0.5) * (std / FP8_STD)
    laid_out = torch.empty_strided(spec.sizes, spec.strides, device=device)
    return laid_out.copy_(values)


def _per(scale: "torch.Tensor", shape: tuple[int, int]) -> "torch.Tensor":
    """Return one scale for all, or scales seen as a column or a row."""
    return scale.reshape(() if scale.numel() == 1 else shape)


def _offsets(
    spec: TensorSpec | None, sizes: Problem, seed: int, device: str
) -> "torch.Tensor | None":
    """Return where uneven groups end, one of them empty, as routing leaves them."""
    import torch

    if spec is None:
        return None
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(sizes.groups, generator=generator) + 0.1
    if sizes.groups > 1:
        shares[seed % sizes.groups] = 0
    # The last end is M whatever was rounded before it.
    ends = (shares.double().cumsum(0) / shares.double().sum() * sizes.m).round()
    return ends.to(getattr(torch, spec.dtype)).to(device)
