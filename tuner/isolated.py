"""GEMMs by themselves as programs, for shapes that no program at hand runs.

What a program fuses to a GEMM is no part of these: where it is part of Inductor's keys,
such a list is not the one that serving asks for.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from flytune.caches.program import Piece
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import FP4, MX, MX_BLOCK, GemmShape

if TYPE_CHECKING:
    import torch

Make = Callable[..., "torch.Tensor"]
"""(sizes, type's name) -> a dense tensor on the device."""


def piece_name(shape: GemmShape) -> str:
    """Return a name that shapes have in common when they are one problem."""
    groups = f"{shape.groups} groups" if shape.groups else ""
    types = dict.fromkeys((shape.a_dtype, shape.b_dtype, shape.out_dtype))
    bias = "bias" if shape.bias else ""
    parts = (str(shape), groups, *types, shape.scaling or "", shape.layout, bias)
    return " ".join(filter(None, parts))


LISTED = ("tensorwise", "rowwise", *MX)
"""The scale schemes of a scaled_mm that a program here calls, so that it has a list."""


def why_unlisted(shape: GemmShape) -> str:
    """Return why a GEMM has no list whatever Inductor can; "" where it may have one."""
    listed = shape.op == "scaled_mm" and shape.scaling in LISTED
    if shape.scaling is None or listed:
        return ""
    return f"no program here calls a {shape.op} in {shape.scaling}"


def isolated_pieces(
    shapes: Iterable[GemmShape], device: str = "cuda"
) -> Iterator[tuple[GemmShape, Piece]]:
    """Yield each distinct problem once, as a piece whatever the tokens asked for.

    Args:
        shapes: Whose modules do not matter.
        device: torch's type of the device that the tensors are on.

    Making a piece's inputs raises FlytuneError where the scaling is not known.
    """
    seen = set()
    for shape in shapes:
        name = piece_name(shape)
        if name not in seen:
            seen.add(name)
            yield shape, _piece(name, shape, device)


def _piece(name: str, shape: GemmShape, device: str) -> Piece:
    import torch

    on = torch.device(device) if device == "cpu" else torch.device(device, 0)

    def make(sizes: tuple[int, ...], dtype: str) -> "torch.Tensor":
        return torch.empty(sizes, dtype=getattr(torch, dtype), device=on)

    def inputs(_tokens: int, _seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return _inputs(shape, make), {}

    return Piece(name, as_module(_function(shape)), inputs)


def as_module(function: Callable[..., "torch.Tensor"]) -> "torch.nn.Module":
    """Return a function of tensors as what a piece holds."""
    import torch

    class Gemm(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return function(*inputs)

    return Gemm()


def _inputs(shape: GemmShape, make: Make) -> tuple["torch.Tensor", ...]:
    """Return the arguments of `_function`, laid out as the shape says."""
    m, n, k = shape.m, shape.n, shape.k
    if shape.a_dtype == FP4:
        k //= 2
    of_b, of_a = tuple(shape.layout)
    lead = (shape.batch,) if shape.op == "bmm" else ()
    experts = (shape.groups,) if shape.op == "grouped_mm" else lead
    a = _matrix(make, (*lead, m, k), shape.a_dtype, transposed=of_a == "T")
    b = _matrix(make, (*experts, k, n), shape.b_dtype, transposed=of_b == "T")
    bias = (make((n,), shape.out_dtype),) if shape.bias else ()
    if shape.op == "addmm":
        return (make((n,), shape.out_dtype), a, b)
    if shape.op == "grouped_mm":
        return (a, b, make((shape.groups,), "int32"))
    if shape.op == "scaled_mm":
        return (a, b, *_scales(shape, make), *bias)
    return (a, b)


def _matrix(
    make: Make, sizes: tuple[int, ...], dtype: str, *, transposed: bool
) -> "torch.Tensor":
    if not transposed:
        return make(sizes, dtype)
    *lead, rows, columns = sizes
    return make((*lead, columns, rows), dtype).transpose(-1, -2)


def _scales(shape: GemmShape, make: Make) -> tuple["torch.Tensor", ...]:
    """Return A's scales and B's.

    Raises:
        FlytuneError: the scheme is not known.
    """
    blocks = shape.k // MX_BLOCK
    sizes: dict[str | None, tuple[tuple[int, ...], ...]] = {
        "tensorwise": ((), ()),
        "rowwise": ((shape.m, 1), (1, shape.n)),
        **dict.fromkeys(MX, ((shape.m, blocks), (shape.n, blocks))),
    }
    if shape.scaling not in sizes:
        raise FlytuneError(f"unknown scaling of scaled_mm: `{shape.scaling}`")
    dtype = "float8_e8m0fnu" if shape.scaling in MX else "float32"
    return tuple(make(each, dtype) for each in sizes[shape.scaling])


def _function(shape: GemmShape) -> Callable[..., "torch.Tensor"]:
    import torch
    from torch.nn import functional

    out_dtype = getattr(torch, shape.out_dtype)

    def scaled(*inputs: torch.Tensor) -> torch.Tensor:
        a, b, scale_a, scale_b, *bias = inputs
        result: torch.Tensor = torch._scaled_mm(
            *(a, b, scale_a, scale_b, bias[0] if bias else None), out_dtype=out_dtype
        )
        return result

    def blocks_scaled(*inputs: torch.Tensor) -> torch.Tensor:
        a, b, scale_a, scale_b, *bias = inputs
        recipe = functional.ScalingType.BlockWise1x32
        plain = functional.SwizzleType.NO_SWIZZLE
        result: torch.Tensor = functional.scaled_mm(
            *(a, b, scale_a, recipe, scale_b, recipe, plain, plain),
            bias=bias[0] if bias else None,
            output_dtype=out_dtype,
        )
        return result

    def grouped(*inputs: torch.Tensor) -> torch.Tensor:
        a, b, offsets = inputs
        return functional.grouped_mm(a, b, offs=offsets)

    if shape.op == "scaled_mm":
        return blocks_scaled if shape.scaling in MX else scaled
    if shape.op == "grouped_mm":
        return grouped
    function: Callable[..., torch.Tensor] = getattr(torch, shape.op)
    return function
