"""What races, who is whose pick, and what a shape's row says."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


def _candidate(name: str, us: float | None, **more: Any) -> dict[str, Any]:
    return {
        "hash": name,
        "backend": "triton",
        "template": "mm",
        "config": f'{{"BLOCK_M": "{name}"}}',
        "status": "ok" if us is not None else "fault",
        "us": us,
        "winner": False,
        **more,
    }


@pytest.fixture
def regret(bench: Callable[[str], ModuleType]) -> ModuleType:
    return bench("regret")


@pytest.fixture
def peer(bench: Callable[[str], ModuleType]) -> ModuleType:
    return bench("peer")


def test_the_best_of_both_tunes_race_and_what_was_chosen(regret: ModuleType) -> None:
    first = [_candidate(f"c{n}", 10.0 + n) for n in range(12)]
    second = [_candidate(f"c{n}", 30.0 - n) for n in range(12)]
    first[10]["baked"] = True
    second[11]["winner"] = True
    names = regret.entrants((first, second), "c9")
    assert set(names) == {f"c{n}" for n in range(12)} - {"c8"}
    assert len(set(names)) == len(names)


def test_a_pick_that_failed_in_our_check_does_not_race(regret: ModuleType) -> None:
    candidates = [_candidate("a", 1.0, winner=True), _candidate("b", None)]
    assert regret.entrants((candidates, candidates), "b") == ["a"]


def test_a_pick_is_found_by_its_hash_then_by_what_it_is(peer: ModuleType) -> None:
    aten = _candidate("lib", 2.0, backend="aten")
    candidates = [aten, _candidate("a", 1.0), _candidate("b", 1.0)]

    def pick(**differs: Any) -> tuple[str | None, str]:
        found: tuple[str | None, str] = peer.pick_in(
            candidates, {**candidates[1], **differs}
        )
        return found

    assert pick() == ("a", "hash")
    assert pick(hash="other") == ("a", "parameters")
    assert pick(hash="other", template="tma")[0] is None
    assert pick(hash="other", backend="aten") == ("lib", "backend")
    assert pick(hash="other", backend="cutlass")[0] is None


@pytest.mark.parametrize(
    ("second_us", "agree"), [((10.05,) * 3, True), ((10.2,) * 3, False)]
)
def test_a_row_holds_each_choice_against_the_best(
    regret: ModuleType, second_us: tuple[float, ...], agree: bool
) -> None:
    def offered(winner: str) -> dict[str, Any]:
        candidates = [
            _candidate(name, 10.0, winner=name == winner, baked=name == "a")
            for name in ("a", "b", "c")
        ]
        return {"shape": [16, 4, 8], "module": "m", "candidates": candidates}

    samples = {"a": (10.0, 10.0, 10.0), "b": second_us, "c": (15.0, 15.0, 15.0)}
    inductor = {"lists": [{"candidates": 3}]}
    row = regret.row_of((offered("a"), offered("b")), samples, ("c", "hash"), inductor)
    assert row["winner_over_best"] == row["baked_over_best"] == 1.0
    assert row["peer_over_best"] == 1.5
    assert not row["same_winner"]
    assert row["agree"] is agree
    figures = regret.figures_of([{**row, "disturbed": False}])
    assert figures["share_within_1pct"] == figures["baked_share_within_1pct"] == 1.0
    assert figures["peer_share_within_1pct"] == 0.0
    assert figures["agreement"] == float(agree)
    assert figures["peer_over_winner"] == 1.5


def test_nobody_leaves_a_long_race(
    bench: Callable[[str], ModuleType],
) -> None:
    from flytune.tuner.timing import time_interleaved

    plan = bench("race").long_plan(40)
    samplers = {"fast": lambda: 1.0, "slow": lambda: 9.0}
    race = time_interleaved(samplers, plan)
    assert {len(samples) for samples in race.samples_us.values()} == {40}
