"""The tensors of one GEMM and its right result, for every op that the CPU tunes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flytune.caches.program import fill_random
from flytune.tuner.candidate import CandidateList, TensorSpec

if TYPE_CHECKING:
    import torch

# Where each op's inputs stand in Inductor's list: (A, B, bias, other), -1 for none.
# Source: the lowerings in torch/_inductor/kernel/{mm,bmm}.py and mkldnn_lowerings.py.
POSITIONS = {
    "mm": (0, 1, -1, -1),
    "bmm": (0, 1, -1, -1),
    "addmm": (1, 2, 0, -1),
    "linear_unary": (0, 1, 2, -1),
    "linear_binary": (0, 2, 3, 1),
}
WEIGHT_STD = 0.02
# Rows of B turned to the reference's precision at a time: a head has 150,000.
REFERENCE_ROWS = 8192


class UnsupportedError(Exception):
    """The runner cannot make this list's inputs; the message says which."""


@dataclass(frozen=True, slots=True)
class Operands:
    """One GEMM's tensors, dense, and what they must give."""

    a: "torch.Tensor"
    """[M, K], or [batch, M, K] for bmm."""
    b: "torch.Tensor"
    """[K, N] (a linear's weight [N, K] seen transposed), or [batch, K, N]."""
    bias: "torch.Tensor | None"
    other: "torch.Tensor | None"
    """What a fused binary op adds, [M, N]."""
    reference: "torch.Tensor"
    """The result in float32, or float64 for float32 inputs, before the cast."""
    is_weight: bool
    """Whether B is a weight, which serving reads from memory at every call."""


def problem(offered: CandidateList) -> tuple[int, int, int, int]:
    """Return (batch, m, n, k) of a list.

    Raises:
        UnsupportedError: the op is not one that the runner knows.
    """
    if offered.op not in POSITIONS:
        raise UnsupportedError(f"no runner for op: {offered.op}")
    a = offered.inputs[POSITIONS[offered.op][0]].sizes
    *batch, m, n = offered.output.sizes
    return (batch[0] if batch else 1, m, n, a[-1])


def bytes_needed(offered: CandidateList) -> int:
    """Return the bytes of one copy of every tensor of a list."""
    import math

    sizes = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
    specs = (*offered.inputs, offered.output)
    return sum(math.prod(s.sizes) * sizes.get(s.dtype, 4) for s in specs)


def make_operands(offered: CandidateList, activation: str, seed: int) -> Operands:
    """Return random operands of a list and their reference result.

    Args:
        activation: oneDNN's name of what follows the GEMM, "none" for nothing.

    Raises:
        UnsupportedError: the op or the activation is not one that is known.
    """
    import torch

    if offered.op not in POSITIONS:
        raise UnsupportedError(f"no runner for op: {offered.op}")
    at_a, at_b, at_bias, at_other = POSITIONS[offered.op]
    inputs = offered.inputs

    def tensor(at: int, std: float) -> "torch.Tensor | None":
        if not 0 <= at < len(inputs):
            return None
        return _tensor(inputs[at], std, seed + at)

    a, bias, other = tensor(at_a, 1.0), tensor(at_bias, 1.0), tensor(at_other, 1.0)
    linear = offered.op.startswith("linear")
    is_weight = offered.op != "bmm"
    spec = inputs[at_b]
    if linear:
        # A packed weight's strides are no strides: it is dense [N, K] when made.
        spec = TensorSpec(spec.sizes, (spec.sizes[1], 1), spec.dtype)
    b = _tensor(spec, WEIGHT_STD if is_weight else 1.0, seed + at_b)
    if linear:
        b = b.t()
    assert a is not None
    wide = torch.float64 if a.dtype == torch.float32 else torch.float32
    reference = _activate(_product(a, b, bias, wide), activation)
    if other is not None:
        reference += other.to(wide)
    return Operands(a, b, bias, other, reference, is_weight)


def _tensor(spec: TensorSpec, std: float, seed: int) -> "torch.Tensor":
    import torch

    dtype = getattr(torch, spec.dtype)
    values = torch.empty(spec.sizes, dtype=dtype)
    fill_random(values, seed=seed, std=std)
    if values.stride() == spec.strides:
        return values
    laid_out = torch.empty_strided(spec.sizes, spec.strides, dtype=dtype)
    return laid_out.copy_(values)


def _product(
    a: "torch.Tensor",
    b: "torch.Tensor",
    bias: "torch.Tensor | None",
    wide: "torch.dtype",
) -> "torch.Tensor":
    """Return A @ B (+ bias) in `wide`, a slice of columns at a time."""
    import torch

    columns = []
    for part in b.split(REFERENCE_ROWS, dim=-1):
        columns.append(a.to(wide) @ part.to(wide))
    result = torch.cat(columns, dim=-1)
    return result if bias is None else result + bias.to(wide)


def _activate(values: "torch.Tensor", name: str) -> "torch.Tensor":
    """Apply oneDNN's post-op; names as in Inductor's `mkldnn_fusion.py`."""
    import torch
    from torch.nn import functional

    known: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "none": lambda x: x,
        "relu": functional.relu,
        "swish": functional.silu,
        "gelu": functional.gelu,
        "tanh": lambda x: x.tanh(),
        "sigmoid": lambda x: x.sigmoid(),
        "hardswish": functional.hardswish,
    }
    if name not in known:
        raise UnsupportedError(f"no reference for activation: {name}")
    return known[name](values)
