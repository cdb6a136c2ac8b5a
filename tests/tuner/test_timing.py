import itertools
import math
import random
from collections.abc import Callable, Mapping

import pytest

from flytune.tuner.timing import (
    MOST_COPIES,
    Race,
    TimingPlan,
    calmest,
    copies_needed,
    time_interleaved,
    unsound,
    wall_samplers,
)

PLAN = TimingPlan(max_seconds=1e9)


class Bench:
    """Synthetic kernels and the clock that they advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def clock(self) -> float:
        return self.now

    def kernel(self, name: str, us: Callable[[], float]) -> Callable[[], None]:
        def launch() -> None:
            self.calls.append(name)
            self.now += us() * 1e-6

        return launch

    def race(
        self, kernels: Mapping[str, list[Callable[[], None]]], plan: TimingPlan
    ) -> Race:
        samplers = wall_samplers(kernels, plan, self.clock)
        return time_interleaved(samplers, plan, self.clock)


def raced(costs_us: Mapping[str, Callable[[], float]], plan: TimingPlan = PLAN) -> Race:
    bench = Bench()
    kernels = {name: [bench.kernel(name, cost)] for name, cost in costs_us.items()}
    return bench.race(kernels, plan)


def timed(
    costs_us: Mapping[str, Callable[[], float]], plan: TimingPlan = PLAN
) -> Mapping[str, tuple[float, ...]]:
    return raced(costs_us, plan).samples_us


def test_exact_kernels_are_timed_exactly() -> None:
    samples = timed({"a": lambda: 10.0, "b": lambda: 10.5})
    assert samples["a"] == pytest.approx([10.0] * PLAN.rounds)
    assert samples["b"] == pytest.approx([10.5] * PLAN.rounds)


def test_what_is_beaten_by_far_races_no_further() -> None:
    costs = {"a": lambda: 10.0, "far": lambda: 30.0, "near": lambda: 10.5}
    race = raced(costs)
    assert {name: len(samples) for name, samples in race.samples_us.items()} == {
        "a": PLAN.rounds,
        "far": PLAN.rough_rounds,
        "near": PLAN.rounds,
    }
    assert race.beaten == {"far"}


def test_the_race_narrows_to_what_is_undecided() -> None:
    costs = {
        "a": lambda: 10.0,
        "clear": lambda: 10.5,
        "noisy": swinging(10.4, 0.6),
    }
    race = raced(costs, TimingPlan(warm_up=1, min_sample_us=1.0, max_seconds=1e9))
    assert race.beaten == {"clear"}
    lengths = {name: len(samples) for name, samples in race.samples_us.items()}
    assert lengths["clear"] == PLAN.rounds < lengths["noisy"] == lengths["a"]


def test_a_slow_start_beats_nobody() -> None:
    calls = itertools.count()
    # Slow in its first sample, as a kernel that is loaded then.
    costs = {"a": lambda: 50.0 if next(calls) < 8 else 9.5, "b": lambda: 10.0}
    race = raced(costs)
    assert race.samples_us["a"][0] > 20.0
    assert race.beaten == frozenset()


def test_order_of_a_round_turns_and_warm_up_is_not_counted() -> None:
    bench = Bench()
    plan = TimingPlan(warm_up=2, rounds=9, max_rounds=9, min_sample_us=1.0)
    kernels = {n: [bench.kernel(n, lambda: 10.0)] for n in "ab"}
    samples = bench.race(kernels, plan).samples_us
    before = "aaa" + "bbb"  # two warm-up calls and one to learn the repeats
    assert "".join(bench.calls) == before + ("abba" * 5)[: 2 * 9]
    assert [len(values) for values in samples.values()] == [9, 9]


def test_sample_repeats_short_calls_until_it_is_long_enough() -> None:
    bench = Bench()
    plan = TimingPlan(warm_up=0, rounds=9, max_rounds=9, min_sample_us=200.0)
    bench.race({"a": [bench.kernel("a", lambda: 3.0)]}, plan)
    assert len(bench.calls) == 1 + 9 * (1 + math.ceil(200 / 3))


def test_the_launch_that_follows_another_candidates_is_in_no_sample() -> None:
    bench, plan = Bench(), TimingPlan(warm_up=1, rounds=9, max_rounds=9)

    def kernel(name: str) -> Callable[[], None]:
        def us() -> float:
            return 10.0 if bench.calls[-2:-1] == [name] else 500.0

        return bench.kernel(name, us)

    samples = bench.race({name: [kernel(name)] for name in "ab"}, plan).samples_us
    for values in samples.values():
        assert values == pytest.approx([10.0] * 9)


def test_copies_of_a_weight_take_turns() -> None:
    bench = Bench()
    plan = TimingPlan(warm_up=1, rounds=9, max_rounds=9, min_sample_us=1.0)
    copies = [bench.kernel(str(number), lambda: 10.0) for number in range(3)]
    bench.race({"a": copies}, plan)
    assert "".join(bench.calls) == ("012" * 4)[: 1 + 1 + 9]


def test_rounds_end_as_soon_as_the_leader_is_clear() -> None:
    assert len(timed({"a": lambda: 10.0, "b": lambda: 11.0})["a"]) == PLAN.rounds


def test_rounds_end_at_once_when_equal() -> None:
    assert len(timed({"a": lambda: 10.0, "b": lambda: 10.0})["a"]) == PLAN.rounds


def swinging(mean: float, swing: float) -> Callable[[], float]:
    """Return a cost that is above and below its mean in turn."""
    signs = itertools.cycle((1, -1))
    return lambda: mean + next(signs) * swing


@pytest.mark.parametrize(
    ("swing", "max_seconds", "rounds"),
    [
        (0.1, 1e9, 15),  # clear at the first look
        (0.6, 1e9, 30),  # clear at the second
        (6.0, 1e9, 150),  # never clear
        (3.0, 0.0, 15),  # no time for more
    ],
)
def test_rounds_are_added_while_undecided_within_limits(
    swing: float, max_seconds: float, rounds: int
) -> None:
    plan = TimingPlan(warm_up=1, max_seconds=max_seconds, min_sample_us=1.0)
    samples = timed({"a": lambda: 10.0, "b": swinging(10.5, swing)}, plan)
    assert [len(values) for values in samples.values()] == [rounds, rounds]


def test_single_candidate_takes_no_more_rounds_than_planned() -> None:
    noise = random.Random(1)
    assert len(timed({"a": lambda: noise.uniform(1, 99)})["a"]) == PLAN.rounds


@pytest.mark.parametrize("bad", [0.0, -5.0, math.nan])
def test_a_kernel_without_a_time_disturbs_no_other(bad: float) -> None:
    now, last = 0.0, "good"

    def clock() -> float:
        return now if last == "good" else now * (bad if bad else 1.0)

    def good() -> None:
        nonlocal now, last
        now, last = now + 1e-5, "good"

    def broken() -> None:
        nonlocal last
        last = "broken"

    samplers = wall_samplers({"good": [good], "bad": [broken]}, PLAN, clock)
    samples = time_interleaved(samplers, PLAN, clock).samples_us
    assert len(samples["good"]) == len(samples["bad"]) == PLAN.rounds
    assert unsound(samples["bad"])


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_one_bad_sample_makes_all_unsound(bad: float) -> None:
    assert unsound([10.0] * 8 + [bad]) == f"a sample is no time: {bad:g} us"
    assert unsound([10.0] * 8) == ""


MIB = 2**20


@pytest.mark.parametrize(
    ("weight", "cache", "budget", "copies"),
    [
        (MIB, 32 * MIB, 1024 * MIB, 65),  # twice the cache passes between two turns
        (63 * MIB, 32 * MIB, 1024 * MIB, 3),
        (64 * MIB, 32 * MIB, 1024 * MIB, 1),  # evicts itself
        (MIB, 32 * MIB, 10 * MIB, 10),  # what memory allows
        (MIB, 32 * MIB, MIB // 2, 1),  # but never none
        (MIB, 32 * MIB, 0, 1),
        (0, 32 * MIB, 1024 * MIB, 1),  # an empty weight
        (MIB, 0, 1024 * MIB, 1),  # no cache
        (256, 60 * MIB, 8192 * MIB, MOST_COPIES),  # of rotary embeddings
    ],
)
def test_copies_needed(weight: int, cache: int, budget: int, copies: int) -> None:
    assert copies_needed(weight, cache, budget) == copies


@pytest.mark.parametrize(
    ("disturbances", "races", "counts"),
    [
        ([0.1], 1, 0.1),  # undisturbed at once
        ([0.5, 0.1], 2, 0.1),
        ([0.5, 0.3, 0.4], 3, 0.3),  # never: the least disturbed
    ],
)
def test_a_disturbed_race_is_run_again(
    disturbances: list[float], races: int, counts: float
) -> None:
    left = iter(disturbances)

    def run() -> tuple[Race, float]:
        disturbed = next(left)
        return Race({"a": (disturbed,)}, frozenset()), disturbed

    race, disturbed = calmest(run, 0.2, 3, PLAN)
    assert (race.samples_us["a"], disturbed) == ((counts,), counts)
    assert len(disturbances) - len(list(left)) == races


def test_no_further_race_begins_when_the_time_is_up() -> None:
    runs = itertools.count(1)
    plan = TimingPlan(max_seconds=-1.0)
    _, disturbed = calmest(lambda: (Race({}, frozenset()), next(runs)), 0.2, 3, plan)
    assert (disturbed, next(runs)) == (1, 2)
