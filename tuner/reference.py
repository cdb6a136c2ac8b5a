"""The right result of a GEMM, in a wider type than its kernels compute in."""

import ast
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flytune.tuner.candidate import CandidateList

if TYPE_CHECKING:
    import torch

Fused = Callable[["torch.Tensor", Any], "torch.Tensor"]
"""From the product and the other operand, if there is one, to the result."""
# Rows of B turned to the reference's precision at a time: a head has 150,000.
REFERENCE_ROWS = 8192


class UnsupportedError(Exception):
    """The runner cannot make this list's inputs; the message says which."""


def product(
    a: "torch.Tensor", b: "torch.Tensor", wide: "torch.dtype"
) -> "torch.Tensor":
    """Return A @ B in `wide`, a slice of columns at a time."""
    import torch

    columns = []
    for part in b.split(REFERENCE_ROWS, dim=-1):
        columns.append(a.to(wide) @ part.to(wide))
    return torch.cat(columns, dim=-1)


def grouped_product(
    a: "torch.Tensor",
    b: "torch.Tensor",
    offsets: "torch.Tensor | None",
    wide: "torch.dtype",
) -> "torch.Tensor":
    """Return each group's rows of A times its own matrix of B.

    Args:
        a: [M, K], or [groups, M, K].
        b: [groups, K, N].
        offsets: Where each group's rows end in [M, K]; None for [groups, M, K].
        wide: The type to compute in.
    """
    import torch

    if offsets is None:
        return torch.stack([product(*pair, wide) for pair in zip(a, b, strict=True)])
    ends = offsets.tolist()
    groups = zip([0, *ends[:-1]], ends, b, strict=True)
    return torch.cat([product(a[start:end], one, wide) for start, end, one in groups])


def fused_with(offered: CandidateList) -> Fused:
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
