"""What is said of estimates, budgets and spending."""

import pytest
from small_bundles import bare_manifest

from flytune.tuner.account import closed_row
from flytune.tuner.budget import Allowance, Meter, parse_budget
from flytune.tuner.estimate import Estimate
from flytune.tuner.spent_words import (
    estimate_line,
    now_line,
    short_line,
    spent_lines,
    took_text,
    unreached_line,
)

PARTS = {"plan": 10.0, "enumerate": 50.0, "tune": 1740.0, "bake": 1500.0, "verify": 0.2}
SOME = Estimate(PARTS, 0, 4.5, "rates")
ON_GPUS = Estimate(PARTS, 4, 4.5, "rates")
ROW = {"asked": "30m", "lists": 40, "unreached": 12, "cut": 3, "share": 0.08}


def test_an_estimate_is_told_by_stage_and_with_gpus_and_price() -> None:
    assert estimate_line(SOME) == (
        "estimate: about 55 min 00 s: plan 10.0 s, enumerate 50.0 s, tune 29 min 00 s, "
        "bake 25 min 00 s; by rates"
    )
    said = estimate_line(ON_GPUS)
    assert "about 55 min 00 s, 3.67 GPU hours of 4 GPUs, $16.50: plan" in said
    assert now_line(ON_GPUS).endswith("$16.50 in all, of it 29 min 00 s to tune")
    without = Estimate(PARTS, 1, None, "rates")
    assert "0.92 GPU hours of 1 GPU: plan" in estimate_line(without)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (None, ""),
        ("2h", ""),
        ("40m", "40m leaves about 14 min 00 s to tune, and all lists take 29 min 00 s"),
        ("5m", "5m is less than it takes to tune nothing, about 26 min 00 s"),
        ("$6", "$6 is less than it takes to tune nothing"),
        ("$15", "$15 leaves about 24 min 00 s to tune"),
    ],
)
def test_a_budget_that_is_short_is_told(budget: str | None, said: str) -> None:
    asked = None if budget is None else parse_budget(budget)
    meter = Meter(lambda: 0.0)
    meter.hold(4)
    allowance = Allowance(asked, 4.5, meter, ON_GPUS.after_tuning_s)
    line = short_line(ON_GPUS, allowance)
    assert said in line
    assert bool(said) == bool(line)


def test_what_others_of_a_fleet_need_is_not_left_to_tune() -> None:
    meter = Meter(lambda: 0.0)
    kept_s = ON_GPUS.after_tuning_s + 600
    allowance = Allowance(parse_budget("40m"), None, meter, kept_s)
    said = short_line(ON_GPUS, allowance)
    assert "40m leaves about 4 min 00 s to tune, and all lists take" in said
    allowance.reserve_s += 600
    said = short_line(ON_GPUS, allowance)
    assert "40m is less than it takes to tune nothing, about 46 min 00 s" in said


def test_what_was_not_reached_is_told() -> None:
    line = unreached_line(ROW)
    assert "30m is too little: 12 of 40 lists were not reached" in line
    assert "the search of 3 lists was cut short: 8.0 % of" in line
    assert unreached_line({**ROW, "unreached": 0, "cut": 0}) == ""


def test_the_end_holds_the_estimate_against_the_truth() -> None:
    row = closed_row(ON_GPUS, ON_GPUS, 3000.0, 12000.0)
    assert (row["seconds"], row["took_s"], row["ratio"]) == (3300.2, 3000.0, 1.1)
    assert (row["took_gpu_hours"], row["took_cost"]) == (3.3333, 15.0)
    said = took_text(row)
    assert said == (
        "50 min 00 s, 3.33 GPU hours, $15.00; estimated 55 min 00 s, $16.50: 1.10 of "
        "what it took"
    )
    manifest = bare_manifest(provenance={"estimate": row, "budget": ROW})
    took, budget = spent_lines(manifest)
    assert took == f"took    {said}"
    assert budget.startswith("budget  30m is too little: 12 of 40 lists")
    assert not list(spent_lines(bare_manifest()))
    empty = {"estimate": None, "budget": None}
    assert not list(spent_lines(bare_manifest(provenance=empty)))
