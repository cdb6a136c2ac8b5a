"""What a report says of a bundle, before it is drawn."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reported
from bundles import manifest

from flytune.caches.bundle import Bundle
from flytune.caches.packing import pack
from flytune.caches.records import RECORDS_NAME, Status, TuningRecord, write_records
from flytune.caches.report import cost, failures, grids, passes, races
from flytune.caches.report.axes import LinearAxis, LogAxis
from flytune.caches.report.beside import beside
from flytune.caches.report.bundles import ReportedBundle, read_bundles, short_names
from flytune.caches.report.facts import judgement, left_out
from flytune.caches.report.listing import list_rows, page_data
from flytune.caches.report.roofline import roof_of, roofline
from flytune.caches.report.words import (
    percent_text,
    ratio_text,
    seconds_text,
    time_text,
)
from flytune.caches.report.work import moved_bytes, operations
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import FP4, GemmShape

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


@pytest.fixture
def small(tmp_path: Path) -> ReportedBundle:
    """Two lists: one of two modules that Triton wins, and one that ATen wins."""
    rows = [
        record(UP, "a", 20.0, backend="aten"),
        record(UP, "t", 10.0, winner=True, compile_s=2.0, batch_s=0.5, at_s=30.0),
        record(UP, "f", None, status=Status.FAULT, reason="died at 0x1f"),
        record(UP, "g", None, status=Status.FAULT, reason="died at 0x2e"),
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
    return read(tmp_path, rows, winners=winners)


def test_numbers_have_the_unit_that_fits() -> None:
    assert [time_text(us) for us in (0.25, 12.345, 1234.5, 2.5e6, None)] == [
        *("0.250 µs", "12.3 µs", "1.23 ms", "2.50 s", "–"),
    ]
    assert seconds_text(75) == "1 min 15 s"
    assert seconds_text(7260) == "2 h 01 min"
    assert [ratio_text(r) for r in (1.325, 12.4, None)] == ["1.32×", "12×", "–"]
    assert [percent_text(s) for s in (0.5, 0.051, 0.0004)] == [
        "50 %",
        "5.1 %",
        "0.04 %",
    ]


def test_ticks_are_round_and_within_the_axis() -> None:
    assert [t.text for t in LogAxis(0.8, 1200, 0, 100).ticks(4)] == [
        *("1", "10", "100", "1,000"),
    ]
    linear = LinearAxis(0, 23, 100, 0)
    assert [(t.text, t.at) for t in linear.ticks(5)][:2] == [("0", 100), ("5", 78.26)]
    assert all(0 <= t.at <= 100 for t in linear.ticks())


def test_work_of_packed_and_grouped_operands() -> None:
    assert operations(UP) == 2 * 16 * 4096 * 1024
    assert moved_bytes(UP) == 2 * (16 * 1024 + 4096 * 1024 + 16 * 4096)
    fp4 = replace(UP, a_dtype=FP4, b_dtype=FP4, scaling="mxfp4")
    elements = 16 * 1024 + 4096 * 1024
    assert moved_bytes(fp4) == elements / 2 + elements / 32 + 2 * 16 * 4096
    grouped = replace(UP, op="grouped_mm", groups=8)
    assert moved_bytes(grouped) == 2 * (16 * 1024 + 8 * 4096 * 1024 + 16 * 4096)
    assert moved_bytes(replace(UP, a_dtype="float3")) is None


def test_modules_are_named_by_what_tells_them_apart() -> None:
    names = ["a.self_attn.q_proj", "a.mlp.down_proj", "a.moe.down_proj", "lm_head"]
    assert list(short_names(names).values()) == [
        *("q_proj", "mlp.down_proj", "moe.down_proj", "lm_head"),
    ]


def test_a_list_counts_for_each_of_its_modules(small: ReportedBundle) -> None:
    up, head = small.lists
    assert (up.label, up.calls, up.pass_us) == ("up_proj +1", 64, 640.0)
    assert passes.shares(small, 16) == {
        "up_proj": 320.0,
        "gate_proj": 320.0,
        "lm_head": 100.0,
    }
    assert passes.pass_us(small, 16) == 740.0
    assert passes.pass_us(small, 16, "aten") == 1380.0
    chart = passes.pass_chart(small)
    assert chart is not None
    (bar,) = chart.bars
    assert (bar.total, bar.speedup) == ("740 µs", "1.86×")
    assert [s.module for s in bar.segments] == ["gate_proj", "up_proj", "lm_head"]
    ends = [segment.x + segment.width for segment in bar.segments]
    assert ends[-1] == pytest.approx(passes.RIGHT)
    assert (head.label, head.pass_us) == ("lm_head", 100.0)


def test_who_won_and_what_it_is_worth(small: ReportedBundle) -> None:
    (row, last) = grids.winners_grid(small).rows
    assert (row.label, [c.text for c in row.cells]) == ("up_proj +1", ["triton"])
    assert [c.text for c in last.cells] == ["aten"]
    aten, triton = grids.speedup_grids(small)
    assert [c.text for r in aten.rows for c in r.cells] == ["2.00", "1.00"]
    assert [c.text for r in triton.rows for c in r.cells] == ["1.00", "1.25"]
    lead = grids.choice_lead(small)
    assert lead.startswith("Of 2 lists with a choice, won: aten 1 and triton 1.")
    assert "1.41× as fast in the geometric mean; 50 % of the lists" in lead
    assert grids.speedup_style(1.0) != grids.speedup_style(1.06)
    assert grids.change_style(0.03) != grids.change_style(-0.03)


def test_measured_ceilings_come_before_the_best_seen(tmp_path: Path) -> None:
    rows = [record(UP, "t", 10.0, winner=True), record(UP, "u", 20.0)]
    ceilings = {"copy_gb_s": 2000.0, "gemm_tflops": {"bfloat16": 400.0}}
    told = read(tmp_path, rows, provenance={"ceilings": ceilings})
    roof = roof_of(told)
    assert roof is not None
    assert (roof.memory.value, roof.memory.measured) == (2.0, True)
    assert roof.compute["bfloat16"].value == 400.0
    (one,) = told.lists
    moved = moved_bytes(UP)
    assert moved is not None
    # Bound by memory: what it moves at two terabytes a second.
    assert roof.share(one) == pytest.approx(moved / 2e6 / 10.0)
    chart = roofline(told)
    assert chart is not None
    assert len(chart.dots) == 2
    assert [count for _, _, count in chart.losers] == [1]
    assert all(line.measured for line in chart.lines)


@pytest.mark.parametrize("ceilings", [None, {"copy_gb_s": "fast"}, {"copy_gb_s": -1}])
def test_without_ceilings_the_best_candidate_stands_for_them(
    tmp_path: Path, ceilings: Any
) -> None:
    rows = [record(UP, "t", 10.0, winner=True), record(UP, "u", 20.0)]
    guessed = read(tmp_path, rows, provenance={"ceilings": ceilings})
    roof = roof_of(guessed)
    assert roof is not None
    assert roof.share(guessed.lists[0]) == pytest.approx(1.0)
    chart = roofline(guessed)
    assert chart is not None
    assert not any(line.measured for line in chart.lines)


def test_noise_and_ties(tmp_path: Path) -> None:
    def rounds(us: float) -> dict[str, Any]:
        return {"samples_us": (us, us * 1.01) * 10}

    rows = [
        record(UP, "a", 10.0, winner=True, **rounds(10.0)),
        record(UP, "b", 10.02, **rounds(10.02)),
        record(UP, "c", 30.0, pruned_by="race"),
        record(HEAD, "a", 5.0, winner=True, samples_us=(5.0, 5.0), mad_us=0.0),
        record(HEAD, "b", 8.0, samples_us=(8.0, 8.0), mad_us=0.0),
    ]
    bundle = read(tmp_path, rows)
    chart = races.races(bundle)
    assert chart is not None
    assert [(r.label, r.said, r.beyond) for r in chart.rows] == [
        ("up_proj, 16 tokens", "2", 1),
        ("lm_head, 16 tokens", "", 0),
    ]
    histogram = races.noise(bundle)
    assert histogram is not None
    # A recorded time has no noise, and is none.
    assert sum(count for _, _, count, _ in histogram.bars) == 3
    assert histogram.lead.startswith(
        "Half of 3 timed candidates vary by less than 1.0 %"
    )


def test_failures_that_differ_in_numbers_are_one(small: ReportedBundle) -> None:
    (reason,) = failures.reasons(small)
    assert (reason.candidates, reason.lists, reason.status) == (2, 1, "fault")
    assert reason.reason == "died at 0x1f"
    aten, triton = failures.fates(small)
    assert (aten.timed, aten.failed) == (2, 0)
    assert (triton.candidates, triton.timed, triton.beaten, triton.failed) == (
        4,
        2,
        1,
        2,
    )
    assert failures.failures_lead(small).startswith("2 of 6 candidates failed (33 %).")


def test_cost_of_a_build(small: ReportedBundle, tmp_path: Path) -> None:
    told = cost.cost(small)
    assert told is not None
    assert [(row.backend, row.candidates, row.total_s) for row in told.compiled] == [
        ("triton", 2, 6.0)
    ]
    assert [one.label for one, _, _ in told.dearest] == []
    (tmp_path / "stages").mkdir()
    stages = [["plan", 2.0], ["tune", 58.0], ["odd"], "odd", ["bake", None]]
    rows = [
        record(HEAD, "t", 100.0, batch_s=3.0, at_s=20.0),
        record(UP, "t", 10.0, batch_s=1.0, at_s=40.0),
    ]
    timed = read(tmp_path / "stages", rows, provenance={"stages": stages})
    whole = cost.cost(timed)
    assert whole is not None
    assert [bar.name for bar in whole.stages] == ["plan", "tune"]
    assert whole.stages[-1].x + whole.stages[-1].width == pytest.approx(cost.RIGHT)
    assert [one.label for one, _, _ in whole.dearest] == ["lm_head", "up_proj"]
    assert whole.lead.startswith("The build took 1 min 00 s, of it tune 97 %.")
    assert whole.decided.count("V") == 2


def test_two_bundles_side_by_side(tmp_path: Path) -> None:
    first = reported.bundle(tmp_path, "old.tar.zst", tokens=(16,))
    second = reported.bundle(
        tmp_path,
        "new.tar.zst",
        tokens=(16, 64),
        triton=1.5,
        created="2026-03-02T00:00:00Z",
    )
    bundles = read_bundles([Bundle.open(first), Bundle.open(second)])
    table = beside(bundles)
    assert table is not None
    assert table.names == ("old", "new")
    assert [row.name for row in table.passes] == ["16 tokens"]
    assert len(table.lists) == 10
    only_new = [row for row in table.lists if row.values[0].text == "absent"]
    assert len(only_new) == 5
    effects = [abs(row.effect) for row in table.lists]
    assert effects == sorted(effects, reverse=True)
    packed = next(row for row in table.facts if row.name == "packed")
    assert [value.differs for value in packed.values] == [False, True]
    assert beside(bundles[:1]) is None


def test_bundles_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [reported.bundle(tmp_path / n, tokens=(16,)) for n in ("one", "two")]
    names = [one.name for one in read_bundles([Bundle.open(path) for path in paths])]
    assert names == ["llama-3.1-8b (1)", "llama-3.1-8b (2)"]


def test_the_table_of_lists_and_their_candidates(small: ReportedBundle) -> None:
    up, _ = list_rows(small)
    texts = [cell.text for cell in up.cells]
    assert texts[:8] == [
        *("16", "4096 × 1024", "bf16", "64", "triton", "10.0 µs", "1.0 %", "2.00×"),
    ]
    lists = page_data(small, roofline(small))["lists"]
    assert [row[0] for row in lists[0]["rows"]] == [
        "triton",
        "aten",
        "triton",
        "triton",
    ]
    assert lists[0]["rows"][0][-1] == "won"
    assert lists[0]["rows"][-1][-1] == "fault: died at 0x2e"
    assert lists[1]["rows"][1][-2:] == ["+25 %", "left out by race"]


def test_a_verdict_is_the_manifests_own() -> None:
    whole = manifest(verify={"ok": True, "first_call_s": 1.31, "worst_error": 0.0096})
    good = judgement(whole)
    assert (good.level, good.word) == ("good", "Verified")
    assert "first calls took 1.31 s" in good.text
    missed = judgement(manifest(verify={"ok": False, "failures": ["1 lowered"]}))
    assert (missed.level, missed.details) == ("bad", ("1 lowered",))
    assert judgement(manifest()).word == "Not verified"
    kernels = judgement(manifest(bake={"passes": []}))
    assert (kernels.level, kernels.word) == ("warn", "Kernels only")


def test_what_is_left_out_is_named_by_reason() -> None:
    coverage = {
        "missing": {"a rule": ["mm (1, 2, 3) at x", "mm (4, 5, 6) at y"]},
        "declined": {"k is odd": ["mm (1, 2, 7) at z"]},
        "untimed": ["mm (7, 8, 9) at w: no memory"],
        "unplanned": [],
        "unreached": {"custom_op:moe": 4},
    }
    rows = left_out(manifest(coverage=coverage))
    assert [(row.gemms, row.why) for row in rows] == [
        (2, "a rule"),
        (1, "k is odd"),
        (1, ""),
        (4, "serving runs them by custom_op:moe"),
    ]
    assert left_out(manifest(coverage={"missing": [1], "unreached": 3})) == ()


def test_a_bundle_that_was_only_compiled_has_no_times(tmp_path: Path) -> None:
    rows = [record(UP, "a", None, backend="aten"), record(UP, "t", None, compile_s=1.0)]
    bundle = read(tmp_path, rows, bake={"passes": []})
    assert passes.pass_chart(bundle) is None
    assert roofline(bundle) is None
    assert races.races(bundle) is None
    assert races.noise(bundle) is None
    assert [c.text for c in grids.winners_grid(bundle).rows[0].cells] == ["–"]
    assert grids.choice_lead(bundle) == "No list has been decided between candidates."
    assert list_rows(bundle)[0].cells[4].text == "undecided"


def test_a_bundle_without_records_is_one_clear_line(tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    staged.mkdir()
    packed = pack(staged, manifest(), tmp_path / "b.tar.zst", keys=[])
    with pytest.raises(FlytuneError, match="bundle has no records: "):
        read_bundles([Bundle.open(packed)])
