"""After how many starts a build has paid for itself, and what of a budget is told."""

from pathlib import Path
from typing import Any

import pytest
from small_reports import UP, read, record

from flytune.caches.report.budgets import unreached_text
from flytune.caches.report.cost import cost
from flytune.caches.report.paid import Paid, paid

STAGES = [["plan", 2.0], ["tune", 12.0], ["bake", 50.0], ["verify", 10.0]]
ROWS = [
    record(UP, "a", 20.0, backend="aten", batch_s=2.0),
    record(UP, "t", 10.0, winner=True, compile_s=16.0, batch_s=2.0),
]


def found(folder: Path, search: str = "default", **provenance: Any) -> Paid | None:
    whole = {"stages": STAGES, "estimate": {"slots": 2}, **provenance}
    bundle = read(
        folder,
        ROWS,
        provenance=whole,
        coverage={"search": search},
        bake={"passes": [{"lowered": 4}, {}, {}], "settled": True},
    )
    return paid(bundle.manifest, [one.tuned for one in bundle.lists])


def test_a_start_saves_the_first_pass_and_the_tuning(tmp_path: Path) -> None:
    said = found(tmp_path)
    assert said is not None
    # Two passes of the bake did what a start with the bundle does, 10 s each.
    assert (said.compiled_s, said.tuned_s) == (20.0, 16 / 2 + 2)
    assert (said.build_s, said.starts) == (74.0, 3)
    assert "paid for itself after 3 starts" in said.text


def test_a_build_that_went_on_has_tuned_before(tmp_path: Path) -> None:
    said = found(tmp_path, stages=[row for row in STAGES if row[0] != "tune"])
    assert said is not None
    assert said.build_s == 62.0 + 10.0


@pytest.mark.parametrize("stages", [[], [["bake", 50.0]], "no list", [["bake", "x"]]])
def test_what_says_nothing_has_no_figure(tmp_path: Path, stages: Any) -> None:
    assert found(tmp_path, stages=stages) is None


def test_serving_would_not_search_as_far(tmp_path: Path) -> None:
    rows = [record(UP, f"t{n}", 10.0, compile_s=2.0, batch_s=8.0) for n in range(40)]
    bundle = read(
        tmp_path,
        rows,
        provenance={"stages": STAGES},
        coverage={"search": "exhaustive"},
        bake={"passes": [{"lowered": 4}, {}], "settled": True},
    )
    said = paid(bundle.manifest, [one.tuned for one in bundle.lists])
    assert said is not None
    assert said.tuned_s == pytest.approx((40 * 2.0 + 8.0) / 2)


def test_nothing_saved_is_said() -> None:
    assert Paid(10.0, 0.0, 0.0).starts is None
    assert "as long as one without" in Paid(10.0, 0.0, 0.0).text


def test_the_report_says_what_was_expected_and_not_reached(tmp_path: Path) -> None:
    provenance = {
        "stages": STAGES,
        "estimate": {"seconds": 60.0, "took_s": 80.0, "slots": 1},
        "budget": {
            **{"asked": "30m", "lists": 40, "unreached": 12, "cut": 1},
            "share": 0.08,
        },
    }
    chart = cost(read(tmp_path, ROWS, provenance=provenance))
    assert chart is not None
    assert "1 min 00 s were expected: 0.75 of what it took" in chart.lead
    assert (
        "Its budget of 30m is too little: 12 of 40 lists were not reached" in chart.lead
    )
    assert "the search of 1 list was cut short: 8.0 %" in chart.lead


@pytest.mark.parametrize(
    "row", [{}, {"unreached": "x"}, {"unreached": 0, "cut": 0, "share": 0.0}]
)
def test_a_budget_that_was_enough_says_nothing(row: dict[str, Any]) -> None:
    assert unreached_text(row) == ""
