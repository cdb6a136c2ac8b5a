"""Times that others measured, read from their own files.

flytune's records, AITER's tuned tables, TunableOp's results and tables of TFLOP/s by
backend, as AMD published them for FlyDSL. A row without a time is passed over: a
missing time is missing, never zero.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flytune.caches.records import Status, read_records
from flytune.shapes.errors import FlytuneError
from flytune.shapes.logs import tunableop
from flytune.shapes.logs.observed import ImpossibleRowError

# What AITER calls the library that torch calls too.
_AITER_BACKENDS = {"torch": "aten", "hipblaslt": "aten"}
_TYPES = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class RecordedTime:
    """One backend's best time of one GEMM, as somebody recorded it."""

    op: str
    m: int
    """All groups' rows together."""
    n: int
    k: int
    """The logical size, also where two values share a byte."""
    groups: int
    dtype: str
    """Of A, or the scheme of scaling: "bfloat16", "mxfp8"."""
    backend: str
    """"aten", "triton", "flydsl", or a name of the table's own, such as "asm"."""
    us: float
    source: str
    """File, and what it says of where it is from."""
    choice_hash: str = ""
    """The candidate, where the file names one that Inductor knows."""
    layout: str = ""
    """As `GemmShape.layout`, where the file says it."""


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """What one file holds."""

    times: tuple[RecordedTime, ...]
    passed_over: int
    """Rows without a usable time or size."""


def read_recorded(path: Path) -> RecordedTable:
    """Read a file of recorded times, of whatever known form.

    Raises:
        FlytuneError: there is no such file, or its form is none that is known.
    """
    if path.suffix == ".parquet":
        times = tuple(_of_records(path))
        return RecordedTable(times, 0)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FlytuneError(f"recorded times cannot be read: {path}: {error}") from error
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text))]
    header = rows[0] if rows else []
    if tunableop.holds(text):
        found = [
            _of_tunable(row, path.name)
            for row in rows
            if row[:1] != [tunableop.VALIDATOR]
        ]
        return _table([[one] for one in found])
    named = [dict(zip(header, row, strict=False)) for row in rows[1:] if any(row)]
    if {"M", "N", "K", "us"} <= set(header):
        return _table([[_of_aiter(row, path.name)] for row in named])
    if {"op", "M", "N", "K"} <= set(header) and any("_tflops" in c for c in header):
        return _table([list(_of_tflops(row, path.name)) for row in named])
    raise FlytuneError(
        f"not a table of recorded times: {path}",
        hint="known are records.parquet, AITER's tuned CSV, TunableOp's results, and "
        "a CSV with op, M, N, K and BACKEND_tflops",
    )


def _table(rows: list[list[RecordedTime | None]]) -> RecordedTable:
    times = tuple(one for row in rows for one in row if one is not None)
    return RecordedTable(times, sum(not any(row) for row in rows))


def _of_records(path: Path) -> Iterator[RecordedTime]:
    for record in read_records(path):
        if record.status is not Status.OK or record.median_us is None:
            continue
        yield RecordedTime(
            *(record.op, record.m, record.n, record.k, record.groups),
            dtype=record.scaling or record.a_dtype,
            backend=record.backend,
            us=record.median_us,
            source=f"{path.name}: {record.source or 'timed'}",
            choice_hash=record.choice_hash,
            layout=record.layout,
        )


def _of_tunable(row: list[str], name: str) -> RecordedTime | None:
    """Read a line of `torch.cuda.tunable`'s results; times are in milliseconds."""
    if len(row) < 4:
        return None
    us = 1e3 * _number(row[3])
    try:
        gemm = tunableop.entry(row[0], row[1])
    except ImpossibleRowError:
        return None
    if "mm" not in gemm.ops or us <= 0:
        return None
    assert gemm.m is not None
    assert gemm.n is not None
    assert gemm.k is not None
    return RecordedTime(
        *("mm", gemm.m, gemm.n, gemm.k, 0, gemm.a_dtypes[0], "aten", us),
        source=f"{name}: {row[2]}",
        layout=gemm.layouts[0],
    )


def _of_aiter(row: Mapping[str, str], name: str) -> RecordedTime | None:
    """Read a winner of AITER's tuning; its placeholders have a time of zero."""
    us, sizes = _number(row.get("us", "")), _sizes(row)
    if us <= 0 or sizes is None:
        return None
    backend = row.get("libtype") or row.get("backend") or ""
    dtype = row.get("dtype") or row.get("q_dtype_w") or ""
    dtype = dtype.removeprefix("torch.")
    return RecordedTime(
        "mm" if dtype in ("bfloat16", "float16") else "scaled_mm",
        *sizes,
        groups=0,
        dtype=dtype,
        backend=_AITER_BACKENDS.get(backend, backend),
        us=us,
        source=f"{name}: {row.get('source') or 'AITER'}",
    )


def _of_tflops(row: Mapping[str, str], name: str) -> Iterator[RecordedTime | None]:
    """Read one GEMM with a column a backend: 2 m n k operations, and TFLOP/s."""
    sizes = _sizes(row)
    op = _op_of(row["op"])
    if sizes is None or not op:
        yield None
        return
    m, n, k = sizes
    groups = int(row.get("groups") or 0)
    rows = m * max(groups, 1)  # the tables give each group's
    for column, value in row.items():
        backend, _, unit = column.rpartition("_")
        rate = _number(value)
        if unit != "tflops" or rate <= 0:
            continue
        us = 2 * rows * n * k / rate / 1e6
        dtype = _TYPES.get(row.get("dtype", ""), row.get("dtype", ""))
        source = f"{name}: {row.get('source', '')}"
        yield RecordedTime(op, rows, n, k, groups, dtype, backend, us, source)


def _op_of(words: str) -> str:
    """Return the op of a table's words; nothing for what is fused to it besides."""
    if "epilogue" in words:
        return ""
    known = ("scaled_mm", "grouped_mm", "mm")
    return next((op for op in known if op in words), "")


def _sizes(row: Mapping[str, str]) -> tuple[int, int, int] | None:
    sizes = tuple(_number(row.get(name, "")) for name in ("M", "N", "K"))
    if not all(size > 0 and size == int(size) for size in sizes):
        return None
    m, n, k = map(int, sizes)
    return m, n, k


def _number(text: str) -> float:
    """Return a number, or zero where there is none."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 < value < float("inf") else 0.0
