import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from flytune.caches import columns, records
from flytune.caches.columns import COLUMNS, SINCE, Status
from flytune.caches.records import TuningRecord, read_records, write_records
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape

SHAPE = GemmShape(op="mm", m=64, n=6144, k=4096, module="layers.*.q_proj", count=32)


def record(**changes: Any) -> TuningRecord:
    whole: dict[str, Any] = {
        "backend": "cpp",
        "template": "CppMicroGemmAMX",
        "config": '{"block_m":32}',
        "choice_hash": "c0ffee",
        "status": Status.OK,
        "median_us": 21.7,
        "mad_us": 0.2,
        "rounds": 3,
        "samples_us": (21.5, 21.7, 22.0),
        "strides": ((4096, 1), (1, 4096)),
        "offsets": (0, 0),
    }
    return TuningRecord.of_shape(SHAPE, **(whole | changes))


FAILED = record(
    status=Status.COMPILE_ERROR,
    reason="no registers",
    median_us=None,
    mad_us=None,
    rounds=None,
    samples_us=(),
    strides=(),
)


def test_fields_are_the_columns() -> None:
    assert [f.name for f in fields(TuningRecord)] == [c.name for c in COLUMNS]


def test_parquet_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "records.parquet"
    write_records([record(), FAILED], path)
    assert read_records(path) == (record(), FAILED)
    assert [p.name for p in tmp_path.iterdir()] == ["records.parquet"]


def test_parquet_of_no_records(tmp_path: Path) -> None:
    write_records([], tmp_path / "r.parquet")
    assert read_records(tmp_path / "r.parquet") == ()


def test_json_round_trip_keeps_the_order_of_the_columns() -> None:
    row = json.loads(json.dumps(FAILED.to_row()))
    assert list(row) == [c.name for c in COLUMNS]
    assert TuningRecord.from_row(row) == FAILED


def test_missing_field() -> None:
    row = record().to_row()
    del row["layout"]
    with pytest.raises(FlytuneError, match="record field missing: `layout`"):
        TuningRecord.from_row(row)


def test_unknown_field() -> None:
    with pytest.raises(FlytuneError, match="record field unknown: `colour`"):
        TuningRecord.from_row(record().to_row() | {"colour": 1})


@pytest.mark.parametrize("status", ["fine", None, [], 3])
def test_unknown_status(status: object) -> None:
    with pytest.raises(FlytuneError, match="record status unknown"):
        TuningRecord.from_row(record().to_row() | {"status": status})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("m", 1.5),
        ("m", True),
        ("m", 2**63),
        ("op", None),
        ("winner", 1),
        ("median_us", -1.0),
        ("median_us", float("nan")),
        ("median_us", float("inf")),
        ("samples_us", (1.0, None)),
        ("strides", (1, 2)),
        ("offsets", "00"),
    ],
)
def test_wrong_value(name: str, value: object) -> None:
    with pytest.raises(FlytuneError, match=f"record field `{name}` is not"):
        replace(record(), **{name: value})


def test_failure_without_a_reason() -> None:
    with pytest.raises(FlytuneError, match="no reason for its status: fault"):
        record(status=Status.FAULT)


def test_newer_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(records, "RECORDS_SCHEMA", 7)
        write_records([record()], tmp_path / "r.parquet")
    with pytest.raises(FlytuneError, match=r"records schema 7 is newer .*: 3"):
        read_records(tmp_path / "r.parquet")


@pytest.mark.parametrize("schema", [1, 2])
def test_a_file_of_an_older_schema_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: int
) -> None:
    new = {name for number, some in SINCE.items() if number > schema for name in some}
    older = tuple(c for c in columns.COLUMNS if c.name not in new)
    with monkeypatch.context() as patch:
        patch.setattr(records, "RECORDS_SCHEMA", schema)
        patch.setattr(records, "COLUMNS", older)
        write_records([record(canary_us=1.0, batch_s=2.0, at_s=3.0)], tmp_path / "r")
    (read,) = read_records(tmp_path / "r")
    assert (read.canary_us, read.batch_s, read.at_s) == (None, None, None)
    assert (read.ep, read.reach) == (1, None if schema == 1 else "inductor")
    assert replace(read, reach="inductor") == record()


def test_other_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(records, "COLUMNS", columns.COLUMNS[1:])
        write_records([record()], tmp_path / "r.parquet")
    with pytest.raises(FlytuneError, match="record field missing: `op`"):
        read_records(tmp_path / "r.parquet")


def test_parquet_of_someone_else(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "r.parquet")
    with pytest.raises(FlytuneError, match="not a flytune records file"):
        read_records(tmp_path / "r.parquet")


@pytest.mark.parametrize("content", [b"", b"P", b"PAR1" * 100, None])
def test_corrupt_parquet(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "r.parquet"
    if content is None:
        write_records([record()], path)
        content = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(content)
    with pytest.raises(FlytuneError, match="cannot read records"):
        read_records(path)


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match="cannot read records"):
        read_records(tmp_path / "r.parquet")


def test_absent_directory(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match="cannot write records"):
        write_records([], tmp_path / "no" / "r.parquet")


def test_no_thread_is_left_by_reading(tmp_path: Path) -> None:
    # One that still runs when Python ends can abort a command that was done.
    path = tmp_path / "records.parquet"
    write_records([record()], path)
    code = (
        "import os, sys, pathlib, pyarrow.parquet\n"
        "from flytune.caches.records import read_records\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "assert len(read_records(pathlib.Path(sys.argv[1]))) == 1\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "0\n"
