"""What the charts of a report say of a bundle, before they are drawn."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_reports import HEAD, UP, read, record, small_report

from flytune.caches.report import cost, failures, grids, passes, races
from flytune.caches.report.bundles import ReportedBundle
from flytune.caches.report.ceilings import roof_of
from flytune.caches.report.listing import list_rows
from flytune.caches.report.roofline import roofline
from flytune.caches.report.work import moved_bytes

ONE = replace(HEAD, m=1)


@pytest.fixture
def small(tmp_path: Path) -> ReportedBundle:
    return small_report(tmp_path)


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


def test_each_module_counts_by_its_own_calls(tmp_path: Path) -> None:
    # The records count the calls of all modules.
    shared = replace(UP, count=34)
    row = {"op": "mm", "inputs_key": str(UP), "shape": str(UP)}
    names = [UP.module, "layers.*.mlp.gate_proj"]
    rows = [record(shared, "t", 10.0, winner=True)]
    told = read(tmp_path, rows, winners=({**row, "modules": names, "counts": [32, 2]},))
    assert told.lists[0].calls == 34
    assert passes.shares(told, 16) == {"up_proj": 320.0, "gate_proj": 20.0}


def test_one_is_not_many(tmp_path: Path) -> None:
    chart = passes.pass_chart(read(tmp_path, [record(ONE, "t", 10.0, winner=True)]))
    assert chart is not None
    assert chart.bars[0].segments[0].tip.startswith("lm_head at 1 token: ")


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


@pytest.mark.parametrize("reached", [0.6, 1.07, 1.4])
def test_no_dot_lies_upon_the_words_of_a_slope(tmp_path: Path, reached: float) -> None:
    # Powers of two, as serving has them, are nearer to each other than words are long.
    shapes = [replace(HEAD, m=2**power) for power in range(9)]
    moved = {shape.m: moved_bytes(shape) or 0.0 for shape in shapes}
    rows = [record(s, "t", moved[s.m] / 4e6 / reached, winner=True) for s in shapes]
    ceilings = {"copy_gb_s": 4000.0, "gemm_tflops": {"bfloat16": 760.0}}
    chart = roofline(read(tmp_path, rows, provenance={"ceilings": ceilings}))
    assert chart is not None
    (slope,) = (line for line in chart.lines if line.angle)
    half = 3 * len(slope.texts[0])
    near = [dot for dot in chart.dots if abs(dot.x - slope.text_x) < half]
    rise = (slope.y2 - slope.y) / (slope.x2 - slope.x)
    for dot in near:
        foot = slope.text_y + rise * (dot.x - slope.text_x)
        assert foot < dot.y - 5
    assert slope.x < slope.text_x - half < slope.text_x + half < slope.x2


def test_the_canary_is_shown_while_candidates_were_timed(tmp_path: Path) -> None:
    times = ((90.0, 171.0), (120.0, 175.0), (114.0, 169.0))
    rows = [
        record(replace(UP, m=m), "t", 10.0, winner=True, at_s=at, canary_us=us)
        for m, (at, us) in enumerate(times, 1)
    ]
    chart = races.canary(read(tmp_path, rows))
    assert chart is not None
    left, middle, right = (x for x, _, _ in chart.points)
    assert (right - middle) / (right - left) == pytest.approx(0.2)
    # The whole width is theirs, however long the build ran before.
    assert right - left > 350
    assert chart.lead.endswith("took 171 µs; in 1 of 3 batches within 1 % of that.")


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
    assert [(one.label, *took) for one, *took in told.dearest] == [
        ("up_proj +1", 0.5, 2.0)
    ]
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
