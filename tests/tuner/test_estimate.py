"""Estimates from rates, and what earlier builds change of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import library, task

from flytune.shapes.gemm import GemmShape
from flytune.tuner.decision import untimed_record
from flytune.tuner.estimate import (
    Amounts,
    Estimate,
    Estimator,
    Spent,
    learned,
    load_now,
    refined,
    together,
    tune_s,
)
from flytune.tuner.heat import Heat, least_by_profile
from flytune.tuner.journal import DEVICE, Journal
from flytune.tuner.past import LISTED, SPENT, read_past, spent_row
from flytune.tuner.rates import CPU, H200

RESULTS = Path(__file__).parents[2] / "ci" / "bench" / "results"
SOME = Amounts(tokens=2, lists=4, compiled=8, timed=12, slots=2)


def figures(name: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return row


@pytest.mark.parametrize("search", ["default", "exhaustive"])
def test_the_rates_of_an_h200_are_those_that_were_measured(search: str) -> None:
    rows = figures("throughput.cuda-nvidia-h200-sm_90")["rows"]
    for row in rows:
        if row["side"] != "flytune" or row["search"] != search:
            continue
        lists, candidates = len(row["shapes"]), row["candidates"]
        amounts = Amounts(
            tokens=8 if search == "default" else 1,
            lists=lists,
            compiled=candidates - lists,
            timed=candidates,
            # Of an exhaustive program's five lists one was tuned.
            offered=candidates if search == "default" else 5 * candidates,
            slots=16,
            devices=1,
        )
        parts = Estimator(H200).parts(amounts)
        assert parts["tune"] == pytest.approx(row["tune_s"], rel=0.25)
        assert parts["enumerate"] == pytest.approx(row["list_s"], rel=0.25)


def test_the_rates_of_a_bake_are_those_that_were_measured() -> None:
    row = figures("throughput.cuda-nvidia-h200-sm_90")["figures"]
    parts = Estimator(H200).parts(replace(SOME, tokens=1, devices=1))
    assert parts["bake"] == pytest.approx(row["bake_s"], rel=0.25)
    assert parts["verify"] == pytest.approx(row["pack_and_verify_s"], rel=0.25)


def test_the_rates_of_a_cpu_are_those_that_were_measured() -> None:
    row = figures("build_cost.cpu-amd-epyc-avx512")["figures"]["unfrozen"]
    lists = row["tuned"]
    amounts = Amounts(tokens=2, lists=lists, compiled=lists, timed=2 * lists, slots=2)
    seconds = sum(Estimator(CPU).parts(amounts).values())
    assert seconds == pytest.approx(row["wall_s"], rel=0.25)


def test_large_gemms_take_a_cpu_their_own_time() -> None:
    row = figures("build_cost.cpu-amd-epyc-avx512")["figures"]["frozen"]
    lists, least = row["tuned"], least_by_profile(None, threads=2)
    shapes = (
        GemmShape(op, m, n, k, batch)
        for m in (1, 64)
        # Llama-3.3-70B's, of those tokens.
        for op, n, k, batch in (
            *[("mm", 8192, 8192, 1)] * 2,
            *[("mm", 1024, 8192, 1)] * 2,
            *[("mm", 28672, 8192, 1)] * 2,
            *(("mm", 8192, 28672, 1), ("mm", 128256, 8192, 1)),
        )
    )
    call_s = 2 * sum(map(Heat(least).us, shapes)) / 1e6
    amounts = Amounts(
        **{"tokens": 2, "lists": lists, "compiled": lists, "timed": 2 * lists},
        **{"call_s": call_s, "slots": 2, "frozen": True},
    )
    seconds = sum(Estimator(CPU).parts(amounts).values())
    assert seconds == pytest.approx(row["wall_s"], rel=0.25)


def test_on_a_cpu_one_comes_after_the_other_and_elsewhere_it_hides() -> None:
    assert tune_s(SOME, 1.0, 20.0, 8.0) == 1 + 10 + 8
    hidden = replace(SOME, devices=2)
    assert tune_s(hidden, 1.0, 20.0, 8.0) == 1 + 10 + 4 / 4
    assert tune_s(hidden, 1.0, 2.0, 80.0) == 1 + 40 + 1 / 4
    assert tune_s(replace(SOME, lists=0), 1.0, 0.0, 0.0) == 0


def test_what_is_done_takes_no_time() -> None:
    done = replace(SOME, lists=0, compiled=0, timed=0, enumerated=True, baked=False)
    parts = Estimator(CPU).parts(done)
    assert {name for name, seconds in parts.items() if seconds} == {"plan"}


def spent(key: str, factor: float, **changes: Any) -> Spent:
    """Return a build of which each part took so many times what the rates say."""
    amounts = replace(SOME, **changes)
    parts = Estimator(CPU).parts(amounts)
    return Spent(
        key,
        amounts,
        {name: factor * seconds for name, seconds in parts.items()},
        compile_s=factor * CPU.compile_s * amounts.compiled,
        device_s=factor * CPU.list.fixed_s * amounts.lists,
    )


def test_it_learns_from_builds_of_the_same_key_first() -> None:
    every = [spent("other", 5.0), spent("own", 2.0), spent("own", 2.2)]
    bake = Estimator(CPU).parts(SOME)["bake"]
    assert learned(CPU, every, "own").parts(SOME)["bake"] == pytest.approx(2.1 * bake)
    assert learned(CPU, every, "new").parts(SOME)["bake"] == pytest.approx(2.2 * bake)
    assert learned(CPU, [], "own").parts(SOME)["bake"] == bake


@pytest.mark.parametrize("more", [{}, {"tokens": 9, "lists": 40, "compiled": 40}])
def test_a_build_like_an_earlier_one_takes_as_long(more: dict[str, int]) -> None:
    before = spent("own", 3.0)
    again = learned(CPU, [before], "own")
    assert again.builds == 1
    truth = spent("own", 3.0, **more)
    parts = again.parts(truth.amounts)
    assert parts == pytest.approx(dict(truth.stages))


def test_a_price_is_of_all_gpus_until_the_end() -> None:
    estimate = Estimate({"tune": 1800.0, "bake": 1800.0}, 4, 2.5, "rates")
    assert (estimate.seconds, estimate.gpu_hours, estimate.cost) == (3600, 4, 10)
    assert replace(estimate, price=None).cost is None
    assert replace(estimate, devices=0).cost is None
    both = together([estimate, estimate])
    assert (both.seconds, both.cost) == (7200, 20)


def test_a_budget_takes_from_the_tuning_alone() -> None:
    estimate = Estimate({"plan": 10.0, "tune": 100.0, "bake": 50.0}, 0, None, "rates")
    assert estimate.within(1000).seconds == 160
    assert estimate.within(100).seconds == 100
    # What there must be is there whatever the budget is.
    assert estimate.within(1).seconds == 60
    assert estimate.after_tuning_s == 50


def test_journals_of_the_device_tell_what_builds_took(tmp_path: Path) -> None:
    own, other, foreign = (tmp_path / n for n in ("own", "other", "foreign"))
    blank = untimed_record(task([library()]), library())
    timed = replace(blank, median_us=3.0)
    took = spent("key", 2.0)
    for folder, device in ((own, "a"), (other, "a"), (foreign, "b")):
        with Journal(folder / "journal.jsonl") as journal:
            journal.add_all(
                [
                    (DEVICE, {"name": device}),
                    (LISTED, {"lists": {folder.name: [1, 2, 3.5]}}),
                    (LISTED, {"lists": {folder.name: [1, 2]}}),
                    ("record", {"list": folder.name, "row": timed.to_row()}),
                    ("record", {"list": folder.name, "row": {"op": "of later on"}}),
                    ("ceilings", {"row": {"copy_gb_s": 7.0}}),
                    (SPENT, spent_row(took)),
                    (SPENT, {"key": "of later on"}),
                ]
            )
    past = read_past(tmp_path, own, "a")
    assert past.spent == [took, took]
    assert past.library == [timed, timed]
    assert past.ceilings == {"copy_gb_s": 7.0}
    assert past.listed == {"own": (1, 2, 3.5)}
    assert past.decided == {"own"}
    assert not read_past(tmp_path / "none", tmp_path / "none" / "own", "a").spent


def test_a_host_that_lists_slowly_bakes_slowly() -> None:
    parts = Estimator(CPU).parts(SOME)
    took = {"plan": 5.0, "enumerate": 2 * parts["enumerate"]}
    now = refined(parts, parts, took)
    assert now["bake"] == 2 * parts["bake"]
    assert (now["plan"], now["tune"]) == (5.0, parts["tune"])
    # What was listed before, or soon, tells nothing.
    for expected, seconds in ((0.0, 0.1), (parts["enumerate"], 0.1), (0.0, 60.0)):
        before = {**parts, "enumerate": expected}
        same = refined(parts, before, {"enumerate": seconds})
        assert same["bake"] == parts["bake"]


def test_a_busy_host_takes_longer_and_what_it_took_is_no_rate() -> None:
    quiet = Estimator(CPU).parts(SOME)
    busy = Estimator(CPU, load=3.0).parts(SOME)
    assert busy == pytest.approx({n: 3 * s for n, s in quiet.items()})
    truth = replace(spent("own", 2.0), load=2.0)
    again = learned(CPU, [truth], "own")
    assert again.parts(SOME) == pytest.approx(quiet)
    assert learned(CPU, [truth], "own", 2.0).parts(SOME) == pytest.approx(
        dict(truth.stages)
    )
    # A device is nobody else's.
    on_gpu = replace(SOME, devices=1, compiled=0)
    tune = (Estimator(H200, load=load).parts(on_gpu)["tune"] for load in (1.0, 3.0))
    alone, beside = tune
    assert beside - alone == pytest.approx(2 * H200.start_s)
    assert load_now() >= 1
