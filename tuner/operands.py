"""The tensors of one GEMM and its right result, for every op that is tuned."""

import ast
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flytune.caches.program import WEIGHT_STD, fill_random
from flytune.tuner.accuracy import TOLERANCES
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
    # Between the two stands the weight once more, as MKL packs it.
    "packed_linear": (0, 2, -1, -1),
}
LINEARS = frozenset({"linear_unary", "linear_binary", "packed_linear"})
Fused = Callable[["torch.Tensor", Any], "torch.Tensor"]
"""From the product and the other operand, if there is one, to the result."""
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


def make_operands(offered: CandidateList, seed: int, device: str = "cpu") -> Operands:
    """Return random operands of a list and their reference result.

    Args:
        device: torch's type of the device that they are made on.

    Raises:
        UnsupportedError: the op, or what is fused to it, is not one that is known.
    """
    import torch

    if offered.op not in POSITIONS:
        raise UnsupportedError(f"no runner for op: {offered.op}")
    fused = _fused(offered)
    for spec in offered.inputs:
        if spec.dtype not in TOLERANCES:
            raise UnsupportedError(f"no tolerance for type: {spec.dtype}")
    at_a, at_b, at_bias, at_other = POSITIONS[offered.op]
    inputs = offered.inputs

    def tensor(at: int, std: float) -> "torch.Tensor | None":
        if not 0 <= at < len(inputs):
            return None
        return _tensor(inputs[at], std, seed + at, device)

    a, bias, other = tensor(at_a, 1.0), tensor(at_bias, 1.0), tensor(at_other, 1.0)
    linear = offered.op in LINEARS
    is_weight = offered.op != "bmm"
    spec = inputs[at_b]
    if linear:
        # A packed weight's strides are no strides: it is dense [N, K] when made.
        spec = TensorSpec(spec.sizes, (spec.sizes[1], 1), spec.dtype)
    b = _tensor(spec, WEIGHT_STD if is_weight else 1.0, seed + at_b, device)
    if linear:
        b = b.t()
    assert a is not None
    wide = torch.float64 if a.dtype == torch.float32 else torch.float32
    product = _product(a, b, bias, wide)
    reference = fused(product, None if other is None else other.to(wide))
    return Operands(a, b, bias, other, reference, is_weight)


def _tensor(spec: TensorSpec, std: float, seed: int, device: str) -> "torch.Tensor":
    import torch

    dtype = getattr(torch, spec.dtype)
    # A broadcast dimension, whose stride is 0, is one row seen many times.
    sizes = [
        size if stride else 1
        for size, stride in zip(spec.sizes, spec.strides, strict=True)
    ]
    values = torch.empty(sizes, dtype=dtype, device=device)
    fill_random(values, seed=seed, std=std)
    if values.stride() == spec.strides:
        return values
    laid_out = torch.empty_strided(sizes, spec.strides, dtype=dtype, device=device)
    return laid_out.copy_(values).expand(spec.sizes)


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


def _fused(offered: CandidateList) -> Fused:
    """Return what oneDNN fuses to the product; its names are in `mkldnn_fusion.py`.

    Raises:
        UnsupportedError: it is not one that is known here.
    """
    if offered.op not in ("linear_unary", "linear_binary"):
        return lambda product, _: product
    library = _library_config(offered)
    name = library.get("attr")
    if offered.op == "linear_binary":
        if name not in ("add", "sub"):
            raise UnsupportedError(f"no reference for fused op: {name}")
        sign = 1 if name == "add" else -1
        return lambda product, other: product + sign * other
    unary = _unary(f"gelu {library['algorithm']}" if name == "gelu" else str(name))
    return lambda product, _: unary(product, *library["scalars"])


def _unary(name: str) -> Callable[..., "torch.Tensor"]:
    """Return what oneDNN calls `name`; its scalars follow the tensor."""
    from torch.nn import functional

    known: dict[str, Callable[..., torch.Tensor]] = {
        "none": lambda x: x,
        "relu": functional.relu,
        "swish": functional.silu,
        "gelu none": functional.gelu,
        "gelu tanh": functools.partial(functional.gelu, approximate="tanh"),
        "tanh": lambda x: x.tanh(),
        "sigmoid": lambda x: x.sigmoid(),
        "hardsigmoid": functional.hardsigmoid,
        "hardswish": functional.hardswish,
        "hardtanh": functional.hardtanh,
        "leaky_relu": functional.leaky_relu,
    }
    if name not in known:
        raise UnsupportedError(f"no reference for activation: {name}")
    return known[name]


def _library_config(offered: CandidateList) -> dict[str, Any]:
    """Return the parameters of the library's candidate, which alone names them."""
    for candidate in offered.candidates:
        config = json.loads(candidate.config)
        if "attr" in config:
            return {name: ast.literal_eval(value) for name, value in config.items()}
    raise UnsupportedError(f"no candidate says what is fused: {offered.op}")
