import itertools
import random
from collections.abc import Callable

import pytest
from fakes import candidate, library

from flytune.caches.ties import spread, tied_with_fastest
from flytune.tuner.candidate import ATEN, Candidate
from flytune.tuner.select import choose, fixed_order
from flytune.tuner.timing import TimingPlan, time_interleaved, wall_samplers

ATEN_MM = library()
CPP_MM = candidate("template")
SEEDS = range(100)


def winner(
    costs_us: dict[str, Callable[[random.Random, float], float]], seed: int
) -> str:
    """Time synthetic kernels and return the winner's hash."""
    noise, now = random.Random(seed), 0.0

    def kernel(cost: Callable[[random.Random, float], float]) -> Callable[[], None]:
        def launch() -> None:
            nonlocal now
            now += cost(noise, now) * 1e-6

        return launch

    # A sample a call: nothing averages the noise away.
    plan = TimingPlan(min_sample_us=1e-3, max_seconds=1e9)
    kernels = {name: [kernel(cost)] for name, cost in costs_us.items()}
    samplers = wall_samplers(kernels, plan, lambda: now)
    race = time_interleaved(samplers, plan, lambda: now)
    known = {c.choice_hash: c for c in (ATEN_MM, CPP_MM)}
    survivors = [known[name] for name in costs_us if name not in race.beaten]
    return choose(survivors, race.samples_us).choice_hash


def steady(mean: float, sigma: float) -> Callable[[random.Random, float], float]:
    return lambda noise, _: max(0.1, noise.gauss(mean, sigma))


@pytest.mark.parametrize(("library_us", "template_us"), [(10.0, 10.02), (10.02, 10.0)])
def test_a_difference_below_the_noise_never_chooses(
    library_us: float, template_us: float
) -> None:
    costs = {"library": steady(library_us, 0.4), "template": steady(template_us, 0.4)}
    winners = [winner(costs, seed) for seed in SEEDS]
    assert winners.count("library") >= 99


def test_the_same_kernel_twice_is_a_tie() -> None:
    costs = {"template": steady(10.0, 0.4), "library": steady(10.0, 0.4)}
    assert [winner(costs, seed) for seed in SEEDS].count("library") >= 99


@pytest.mark.parametrize("slow", ["library", "template"])
@pytest.mark.parametrize(("sigma", "wrong"), [(0.2, 0), (0.4, 8)])
def test_a_kernel_that_is_five_percent_slower_loses(
    slow: str, sigma: float, wrong: int
) -> None:
    costs = {
        name: steady(10.5 if name == slow else 10.0, sigma)
        for name in ("library", "template")
    }
    winners = [winner(costs, seed) for seed in SEEDS]
    assert winners.count(slow) <= wrong


def test_a_difference_that_chance_hides_at_first_is_found() -> None:
    # At 15 rounds it often looks smaller than the band.
    costs = {"library": steady(10.5, 0.8), "template": steady(10.0, 0.8)}
    assert [winner(costs, seed) for seed in SEEDS].count("template") >= 85


def test_a_drift_of_the_machine_meets_both_alike() -> None:
    def drifting(mean: float) -> Callable[[random.Random, float], float]:
        return lambda noise, now: noise.gauss(mean, 0.1) * (1 + now * 500)

    costs = {"library": drifting(10.5), "template": drifting(10.0)}
    assert [winner(costs, seed) for seed in SEEDS].count("template") >= 98
    costs = {"template": drifting(10.0), "library": drifting(10.0)}
    assert [winner(costs, seed) for seed in SEEDS].count("library") >= 99


def test_outliers_change_nothing() -> None:
    def jumping(mean: float) -> Callable[[random.Random, float], float]:
        return lambda noise, _: (
            noise.gauss(mean, 0.05) * (100 if noise.random() < 0.05 else 1)
        )

    costs = {"library": jumping(10.5), "template": jumping(10.0)}
    assert [winner(costs, seed) for seed in SEEDS].count("template") >= 98


def test_a_single_outlier_in_every_place() -> None:
    clean = [10.0 + 0.01 * (number % 3) for number in range(15)]
    for at in range(15):
        spoilt = [*clean[:at], 5000.0, *clean[at + 1 :]]
        assert choose([ATEN_MM], {"library": spoilt}) is ATEN_MM
        samples = {"library": [s * 1.05 for s in clean], "template": spoilt}
        assert choose([ATEN_MM, CPP_MM], samples) is CPP_MM


def test_ties_are_broken_in_one_order_whatever_the_list_says() -> None:
    named = [
        candidate("z", ATEN, "addmm"),
        candidate("y", ATEN, "mm"),
        candidate("a", template="A"),
        candidate("b", template="A"),
        candidate("c", "triton", "A"),
    ]
    samples = {c.choice_hash: [10.0] * 9 for c in named}
    for order in itertools.permutations(named):
        assert sorted(order, key=fixed_order) == named
        assert choose(order, samples) is named[0]
        without_library = [c for c in order if c.backend != ATEN]
        assert choose(without_library, samples) is named[2]


def test_the_winner_does_not_depend_on_the_order_of_samples() -> None:
    noise = random.Random(3)
    named = [candidate(str(number)) for number in range(4)]
    for _ in range(20):
        rows = {c.choice_hash: [noise.gauss(10, 0.3) for _ in range(15)] for c in named}
        winners = {
            choose(order, {c.choice_hash: rows[c.choice_hash] for c in order})
            for order in itertools.permutations(named)
        }
        assert len(winners) == 1


def test_a_candidate_far_behind_is_never_tied() -> None:
    samples = {"a": [10.0, 10.1, 9.9] * 5, "b": [20.0, 21.0, 19.0] * 5}
    assert tied_with_fastest(samples) == {"a"}


def test_spread_is_median_and_absolute_deviation() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 100.0]).median_us == 3.0
    assert spread([1.0, 2.0, 3.0, 4.0, 100.0]).mad_us == 1.0


def test_nothing_to_choose_from_is_an_error() -> None:
    nobody: list[Candidate] = []
    with pytest.raises(ValueError, match="no candidate survived"):
        choose(nobody, {})
