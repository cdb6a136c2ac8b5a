"""Bundles of a few records, as a report reads them."""

from pathlib import Path
from typing import Any

from bundles import manifest

from flytune.caches.bundle import Bundle
from flytune.caches.packing import pack
from flytune.caches.records import RECORDS_NAME, Status, TuningRecord, write_records
from flytune.caches.report.bundles import ReportedBundle, read_bundles
from flytune.shapes.gemm import GemmShape

UP = GemmShape("mm", 16, 4096, 1024, module="layers.*.mlp.up_proj", count=32)
HEAD = GemmShape("mm", 16, 32000, 1024, module="lm_head")


def record(shape: GemmShape, name: str, us: float | None, **more: Any) -> TuningRecord:
    columns: dict[str, Any] = {
        "backend": "triton",
        "template": "mm",
        "config": "{}",
        "choice_hash": name,
        "status": Status.OK,
        "median_us": us,
        "mad_us": None if us is None else us / 100,
        "samples_us": () if us is None else (us * 0.99, us, us * 1.01),
        "inductor_op": "mm",
        "inputs_key": str(shape),
        "precision": "highest",
    }
    return TuningRecord.of_shape(shape, **(columns | more))


def read(folder: Path, rows: list[TuningRecord], **changes: Any) -> ReportedBundle:
    staged = folder / "staged"
    staged.mkdir()
    write_records(rows, staged / RECORDS_NAME)
    packed = pack(staged, manifest(**changes), folder / "b.tar.zst", keys=[])
    return read_bundles([Bundle.open(packed)])[0]


def small_report(folder: Path) -> ReportedBundle:
    """Two lists: one of two modules that Triton wins, and one that ATen wins."""
    batch = {"batch_s": 0.5, "at_s": 30.0}
    rows = [
        record(UP, "a", 20.0, backend="aten", **batch),
        record(UP, "t", 10.0, winner=True, compile_s=2.0, **batch),
        record(UP, "f", None, status=Status.FAULT, reason="died at 0x1f", **batch),
        record(UP, "g", None, status=Status.FAULT, reason="died at 0x2e", **batch),
        record(HEAD, "a", 100.0, backend="aten", winner=True),
        record(HEAD, "t", 125.0, compile_s=4.0, pruned_by="race"),
    ]
    winners = (
        {
            "op": "mm",
            "inputs_key": str(UP),
            "shape": str(UP),
            "modules": [UP.module, "layers.*.mlp.gate_proj"],
        },
    )
    return read(folder, rows, winners=winners)
