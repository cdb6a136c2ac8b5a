"""AITER's untuned and tuned CSV files, and the lines of its log that name a GEMM.

Source: `aiter/tuned_gemm.py`, `aiter/ops/gemm_op_*.py` and `aiter/configs/*.csv`. Its
GEMMs take a weight [N, K], as torch's linear does. The log counts M as it was asked
for, also where AITER looks up a padded one.
"""

import csv
import io
import re
from collections.abc import Mapping

from flytune.shapes.gemm import Op
from flytune.shapes.logs.dtypes import dtypes_of
from flytune.shapes.logs.observed import (
    ImpossibleRowError,
    ObservedGemm,
    Tally,
    size_of,
)

_SIZES = frozenset({"M", "N", "K"})
# Of its fused experts' and of other people's tables, which say more than a GEMM.
_FOREIGN = frozenset({"op", "source", "expert", "token"})
_LINE = re.compile(
    r"shape is (?:B: ?(?P<B>\d+), ?)?M: ?(?P<M>\d+), ?N: ?(?P<N>\d+), ?K: ?(?P<K>\d+)"
    r"(?P<more>.*?)(?:not found tuned config|found padded_M)"
)
_FACTS = {
    "dtype": re.compile(r"\bdtype(?:=| is )'?([\w.]+)"),
    "outdtype": re.compile(r"\botype='?([\w.]+)"),
    "bias": re.compile(r"\bbias=(\w+)"),
    "scaleAB": re.compile(r"\bscaleAB=(\w+)"),
    "q_dtype_w": re.compile(r"\bq_dtype_w:([\w.]+)"),
}
_FLAGS = {"": None, "false": False, "0": False, "true": True, "1": True}


def holds_table(text: str) -> bool:
    """Whether the first line is the header of such a CSV file."""
    header = {cell.strip() for cell in text.lstrip().partition("\n")[0].split(",")}
    return header >= _SIZES and not header & _FOREIGN


def holds_log(text: str) -> bool:
    """Whether a line says what AITER found for a GEMM."""
    return _LINE.search(text) is not None


def read_table(text: str, tally: Tally) -> None:
    """Count the rows; a tuned one whose `us` is 0 holds a place and was never run."""
    rows = csv.reader(io.StringIO(text.lstrip()))
    header = [cell.strip() for cell in next(rows)]
    for cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        try:
            if len(cells) != len(header):
                raise ImpossibleRowError("not the header's columns")
            row = {k: v.strip() for k, v in zip(header, cells, strict=True)}
            if "us" in row and not _number(row["us"]) > 0:
                raise ImpossibleRowError("us is not above zero")
            tally.add(_gemm(row))
        except ImpossibleRowError as error:
            tally.set_aside(str(error))


def read_log(text: str, tally: Tally) -> None:
    """Count each line that says a shape and what was found for it, hit or miss."""
    for line in _LINE.finditer(text):
        row = {name: line[name] or "" for name in ("B", "M", "N", "K")}
        for name, pattern in _FACTS.items():
            if fact := pattern.search(line["more"]):
                row[name] = fact[1]
        try:
            tally.add(_gemm({k: v for k, v in row.items() if v}))
        except ImpossibleRowError as error:
            tally.set_aside(str(error))


def _gemm(row: Mapping[str, str]) -> ObservedGemm:
    weight = dtypes_of(row.get("q_dtype_w", ""))
    plain, bias = dtypes_of(row.get("dtype", "")), _flag(row, "bias")
    return ObservedGemm(
        ops=_ops(row, bias),
        m=size_of(row["M"]),
        n=size_of(row["N"]),
        k=size_of(row["K"]),
        batch=size_of(row.get("B", "1")),
        a_dtypes=plain,
        b_dtypes=weight or plain,
        out_dtypes=dtypes_of(row.get("outdtype", "")),
        layouts=("TN",),
        bias=bias,
    )


def _ops(row: Mapping[str, str], bias: bool | None) -> tuple[Op, ...]:
    if "B" in row:
        return ("bmm",)
    if "q_dtype_w" in row or _flag(row, "scaleAB"):
        return ("scaled_mm",)
    if "dtype" not in row:
        # Sizes alone, as its block-scaled tables have them, which do not say so.
        return ("mm", "addmm", "scaled_mm")
    if bias is None:
        return ("mm", "addmm")
    return ("addmm",) if bias else ("mm",)


def _flag(row: Mapping[str, str], name: str) -> bool | None:
    word = row.get(name, "").lower()
    if word not in _FLAGS:
        raise ImpossibleRowError(f"{name} is neither true nor false")
    return _FLAGS[word]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
