"""Inductor's blocks of autotuning: a line `AUTOTUNE mm(16x5120, 5120x10240)`, then the
strides and types of the operands, which older torch releases leave out.

Source: `log_results` of torch/_inductor/select_algorithm.py; the operands stand as in
the lowerings of torch/_inductor/kernel/{mm,bmm,mm_grouped}.py and
mkldnn_lowerings.py.
"""

import re
from typing import NamedTuple

from flytune.shapes.gemm import FP4, Op
from flytune.shapes.logs.dtypes import dtypes_of
from flytune.shapes.logs.observed import (
    ImpossibleRowError,
    ObservedGemm,
    Tally,
    size_of,
)
from flytune.shapes.strides import layouts

_BLOCK = re.compile(r"AUTOTUNE (\w+)\(([^()]*)\)\s*$", re.MULTILINE)
_STRIDES = re.compile(r"\bstrides: (\[.*\])\s*$")
_DTYPES = re.compile(r"\bdtypes: (torch\..*?)\s*$")
_LIST = re.compile(r"\[([^\]]*)\]")


class _Places(NamedTuple):
    op: Op
    a: int = 0
    b: int = 1
    bias: int | None = None
    """Where it stands if there is one; None where there is never one."""
    packed: bool = False
    """Whether B is a linear's weight [N, K], laid out as a library packs it."""


_FORMS = {
    "mm": _Places("mm"),
    "bmm": _Places("bmm"),
    "addmm": _Places("addmm", 1, 2, 0),
    "baddbmm": _Places("bmm", 1, 2),
    "scaled_mm": _Places("scaled_mm", bias=4),
    "grouped_mm": _Places("grouped_mm"),
    "linear_unary": _Places("mm", bias=2, packed=True),
    "linear_binary": _Places("mm", 0, 2, 3, packed=True),
    # Between the two stands the weight once more, as MKL packs it.
    "packed_linear": _Places("mm", 0, 2, packed=True),
}


class _Tensor(NamedTuple):
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    """Empty where the log does not say them."""
    dtype: str


def holds(text: str) -> bool:
    """Whether a line begins such a block."""
    return _BLOCK.search(text) is not None


def read(text: str, tally: Tally) -> None:
    """Count the blocks: one is a list that was timed, however often it then runs."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        block = _BLOCK.search(line)
        if block is None:
            continue
        try:
            tally.add(_gemm(block[1], _tensors(block[2], lines[at + 1 : at + 3])))
        except ImpossibleRowError as error:
            tally.set_aside(str(error))


def _gemm(name: str, tensors: tuple[_Tensor, ...]) -> ObservedGemm:
    places = _FORMS.get(name.removeprefix("_"))
    if places is None:
        raise ImpossibleRowError(f"not a GEMM that is known: {name[:40]}")
    if len(tensors) <= max(places.a, places.b):
        raise ImpossibleRowError("fewer operands than the operation has")
    a, b = tensors[places.a], tensors[places.b]
    if places.packed:
        b = _Tensor(b.sizes[::-1], (), b.dtype)
    if not {len(a.sizes), len(b.sizes)} <= {2, 3}:
        raise ImpossibleRowError("operands are no matrices")
    if a.sizes[-1] != b.sizes[-2]:
        raise ImpossibleRowError("the operands' K differ")
    for tensor in (a, b):
        _check_strides(tensor)
    m, batch, groups = _leading(places.op, a, b)
    bias = places.bias is not None and len(tensors) > places.bias
    return ObservedGemm(
        ops=("addmm",) if places.packed and bias else (places.op,),
        m=m,
        n=b.sizes[-1],
        # Two values of four bits lie in a byte.
        k=a.sizes[-1] * (2 if a.dtype == FP4 else 1),
        batch=batch,
        groups=groups,
        a_dtypes=dtypes_of(a.dtype),
        b_dtypes=dtypes_of(b.dtype),
        layouts=layouts(a[:2], b[:2]) if a.strides and b.strides else (),
        bias=bias,
    )


def _leading(op: Op, a: _Tensor, b: _Tensor) -> tuple[int, int, int]:
    """Return m, batch and groups."""
    lead, m = a.sizes[:-2], a.sizes[-2]
    if op == "grouped_mm":
        if len(b.sizes) != 3:
            raise ImpossibleRowError("groups of K, as in training")
        return m * (lead[0] if lead else 1), 1, b.sizes[0]
    if lead != b.sizes[:-2] or (op == "bmm") != bool(lead):
        raise ImpossibleRowError("the operands' batches differ")
    return m, lead[0] if lead else 1, 0


def _tensors(sizes: str, following: list[str]) -> tuple[_Tensor, ...]:
    """Read the operands of a block from its line and the two below it."""
    shapes = [_numbers(each.strip(), "x") for each in sizes.split(",")]
    strides: list[tuple[int, ...]] = [() for _ in shapes]
    dtypes = ["" for _ in shapes]
    if following and (found := _STRIDES.search(following[0])):
        strides = [_numbers(each, ",") for each in _LIST.findall(found[1])]
        if len(following) > 1 and (named := _DTYPES.search(following[1])):
            dtypes = [
                each.strip().removeprefix("torch.") for each in named[1].split(",")
            ]
    # Other processes may have written between them.
    if not len(shapes) == len(strides) == len(dtypes):
        raise ImpossibleRowError("strides or types of another block")
    if any(s and len(s) != len(z) for s, z in zip(strides, shapes, strict=True)):
        raise ImpossibleRowError("strides or types of another block")
    return tuple(map(_Tensor, shapes, strides, dtypes))


def _numbers(text: str, between: str) -> tuple[int, ...]:
    """Read sizes or strides; a symbol is of a dynamic graph, and none."""
    words = map(str.strip, text.split(between))
    return tuple(size_of(word) for word in words if word)


def _check_strides(matrix: _Tensor) -> None:
    """Refuse strides below what the sizes need, as of a swapped N and K."""
    if not matrix.strides:
        return
    rows, columns = matrix.sizes[-2:]
    row_stride, column_stride = matrix.strides[-2:]
    row_major = column_stride == 1 and (row_stride >= columns or rows == 1)
    column_major = row_stride == 1 and (column_stride >= rows or columns == 1)
    contiguous = 1 in (row_stride, column_stride)
    if contiguous and not (row_major or column_major):
        raise ImpossibleRowError("strides do not fit the sizes")
