"""Tuning records: one row a candidate, as JSON lines and as Parquet."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from flytune.caches.columns import (
    COLUMNS,
    SHAPE_COLUMNS,
    SINCE,
    Status,
    check_value,
    from_json,
    to_json,
)
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "COLUMNS",
    "RECORDS_NAME",
    "RECORDS_SCHEMA",
    "SHAPE_COLUMNS",
    "Status",
    "TuningRecord",
    "read_records",
    "write_records",
]

RECORDS_SCHEMA = 3
RECORDS_NAME = "records.parquet"
_SCHEMA_KEY = b"flytune.records.schema"
_NAMES = dict.fromkeys(column.name for column in COLUMNS)
_ADDED = {name: value for new in SINCE.values() for name, value in new.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRecord:
    """One candidate of one shape; the field names are those of the columns.

    Raises:
        FlytuneError: a value has the wrong type, a time is negative or not finite,
            or a failure has no reason.
    """

    op: str
    m: int
    n: int
    k: int
    batch: int
    groups: int
    a_dtype: str
    b_dtype: str
    out_dtype: str
    layout: str
    scaling: str | None
    bias: bool
    module: str
    count: int
    tp: int
    ep: int = 1
    engine: str
    reach: str | None = None
    """As `GemmShape.reach`; None in a file that does not say it."""
    backend: str
    """Whose kernel: "aten", "triton", "cpp" or "flydsl"."""
    template: str | None
    """Inductor's template, such as "mm_template"; None for a library call."""
    config: str
    """The candidate's parameters as canonical JSON."""
    choice_hash: str
    """Inductor's own hash of the choice, as in its timings file."""
    status: Status
    reason: str | None = None
    """Why it failed; present whenever `status` is not ok."""
    median_us: float | None = None
    """Median time of a call; None unless it ran."""
    mad_us: float | None = None
    """Median absolute deviation of the samples."""
    rounds: int | None = None
    samples_us: tuple[float, ...] = ()
    """One time a round, in the order taken."""
    rel_error: float | None = None
    """Largest error relative to the higher-precision reference."""
    compile_s: float | None = None
    strides: tuple[tuple[int, ...], ...] = ()
    """Strides of each input, in elements."""
    offsets: tuple[int, ...] = ()
    """Storage offset of each input, in elements."""
    device_uuid: str | None = None
    method: str | None = None
    """How it was timed, and what was kept warm."""
    clock_mhz: float | None = None
    source: str | None = None
    """Where the figure comes from, such as "timed" or "recorded"."""
    kernel_digest: str | None = None
    predicted_us: float | None = None
    """What a cost model said, or where `pruned_by` is "older" an older bundle's time;
    None where none was asked."""
    pruned_by: str | None = None
    """The rule that left it untimed; None where it was timed."""
    winner: bool = False
    baked: bool = False
    inductor_op: str | None = None
    """The op under which Inductor's timings file holds it."""
    inputs_key: str | None = None
    """The key of the inputs in Inductor's timings file."""
    precision: str | None = None
    """The precision key in Inductor's timings file."""
    canary_us: float | None = None
    """Median time of the runner's canary, a GEMM that is always the same, around the
    batch: it tells whether two batches met the same device."""
    batch_s: float | None = None
    """Seconds that the device had the whole list; the same in each of its rows."""
    at_s: float | None = None
    """Seconds from the start of the build that timed it until its list was decided."""

    def __post_init__(self) -> None:
        for column in COLUMNS:
            check_value(column, getattr(self, column.name))
        if self.status is not Status.OK and not self.reason:
            raise FlytuneError(f"record has no reason for its status: {self.status}")

    @classmethod
    def of_shape(cls, shape: GemmShape, **columns: Any) -> Self:
        """Return the record of one candidate of `shape`.

        Args:
            columns: the fields that are not the shape's.
        """
        row = shape.to_row()
        return cls(**{c.name: row[c.name] for c in SHAPE_COLUMNS}, **columns)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the record of one JSON row, also of one that an older schema wrote.

        Raises:
            FlytuneError: a field is missing, unknown or of the wrong type.
        """
        row = {**_ADDED, **row}
        if missing := [name for name in _NAMES if name not in row]:
            raise FlytuneError(f"record field missing: `{missing[0]}`")
        if unknown := sorted(row.keys() - _NAMES.keys()):
            raise FlytuneError(f"record field unknown: `{unknown[0]}`")
        return cls(**{c.name: from_json(c, row[c.name]) for c in COLUMNS})

    def to_row(self) -> dict[str, Any]:
        """Return the JSON row, with the columns in their documented order."""
        return {c.name: to_json(getattr(self, c.name)) for c in COLUMNS}


def write_records(records: Iterable[TuningRecord], path: Path) -> None:
    """Write a Parquet file; publish it by rename, so that no reader sees a part.

    Raises:
        FlytuneError: the file cannot be written.
    """
    import pyarrow
    import pyarrow.parquet

    rows = [record.to_row() for record in records]
    table = pyarrow.Table.from_pylist(rows, schema=_arrow_schema())
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            pyarrow.parquet.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise FlytuneError(
            f"cannot write records: {path}: {error.strerror or error}"
        ) from error


def read_records(path: Path) -> tuple[TuningRecord, ...]:
    """Read a Parquet file of records.

    Raises:
        FlytuneError: the file is absent, corrupt, of a newer schema, or a row
            breaks a rule of `TuningRecord`.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        # From memory and in this thread: a thread of pyarrow's that is still there when
        # Python ends can abort it.
        whole = pyarrow.BufferReader(path.read_bytes())
        table = pyarrow.parquet.ParquetFile(whole).read(use_threads=False)
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise FlytuneError(f"cannot read records: {path}: {reason}") from error
    _check_schema(table.schema.metadata or {}, path)
    return tuple(TuningRecord.from_row(row) for row in table.to_pylist())


def _check_schema(metadata: Mapping[bytes, bytes], path: Path) -> None:
    try:
        schema = int(metadata[_SCHEMA_KEY])
    except (KeyError, ValueError) as error:
        raise FlytuneError(f"not a flytune records file: {path}") from error
    if schema > RECORDS_SCHEMA:
        raise FlytuneError(
            f"records schema {schema} is newer than this flytune reads: "
            f"{RECORDS_SCHEMA}",
            hint="upgrade flytune, or build the bundle again with this one",
        )
    if schema < 1:
        raise FlytuneError(f"records schema does not exist: {schema}")


def _arrow_schema() -> "pyarrow.Schema":
    import pyarrow as pa

    kinds = {
        "str": pa.string(),
        "status": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "floats": pa.list_(pa.float64()),
        "ints": pa.list_(pa.int64()),
        "int_rows": pa.list_(pa.list_(pa.int64())),
    }
    return pa.schema(
        [pa.field(c.name, kinds[c.kind], nullable=c.nullable) for c in COLUMNS],
        metadata={_SCHEMA_KEY: str(RECORDS_SCHEMA).encode()},
    )
