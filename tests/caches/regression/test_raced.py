"""How often races of two kernels err, and what they tell."""

import math
import random

import pytest

from flytune.caches.regression.limits import Threshold
from flytune.caches.regression.raced import LOOKS, Raced, Told, sure

DEFAULT = Threshold(0.03, 0.2)
TIME_US = 50.0


def told(
    draw: random.Random, ratio: float, spread: float, *, tests: int = 3, tail: float = 0
) -> Told:
    """What is told of a kernel that takes `ratio` of another's time, at the last look.

    Args:
        spread: From process to process.
        tail: Share of processes in which something else ran.
    """
    values: list[float] = []
    for look in LOOKS:
        while len(values) < look:
            far = 10 if draw.random() < tail else 1
            values.append(math.log(ratio) + draw.gauss(0, spread * far))
        if sure(values, TIME_US, DEFAULT, tests):
            break
    return Raced(tuple(values), TIME_US).measured(DEFAULT).told(tests)


def counted(ratio: float, spread: float, number: int, **more: float) -> dict[Told, int]:
    draw = random.Random(f"{ratio} {spread} {more}")
    found = [told(draw, ratio, spread, **more) for _ in range(number)]
    return {one: found.count(one) for one in Told}


@pytest.mark.parametrize("ratio", [1.0, 1.02])
@pytest.mark.parametrize("spread", [0.01, 0.03])
def test_kernels_within_the_tie_band_alarm_less_than_once_in_200(
    ratio: float, spread: float
) -> None:
    for tail in (0.0, 0.1):
        found = counted(ratio, spread, 800, tests=1, tail=tail)
        assert found[Told.SLOWER] <= 4


@pytest.mark.parametrize("spread", [0.005, 0.02])
def test_a_kernel_that_is_5_percent_slower_is_found(spread: float) -> None:
    assert counted(1.05, spread, 200)[Told.SLOWER] >= 190


def test_one_that_is_slower_never_passes_for_fine_in_more_than_a_few() -> None:
    for spread in (0.01, 0.05, 0.1):
        assert counted(1.05, spread, 200)[Told.FINE] <= 10


def test_what_the_device_is_too_restless_for_is_left_open() -> None:
    assert counted(1.0, 0.3, 100)[Told.OPEN] > 75
    assert counted(1.0, 0.01, 100)[Told.OPEN] == 0


def test_a_difference_below_the_floor_is_none() -> None:
    values = tuple(math.log(1.06) + n / 1e4 for n in range(LOOKS[1]))
    assert Raced(values, 50.0).measured(DEFAULT).told(1) is Told.SLOWER
    assert Raced(values, 1.0).measured(DEFAULT).told(1) is Told.FINE
    assert Raced(values, 50.0).measured(Threshold(0.1, 0.2)).told(1) is Told.FINE
