"""Tail probabilities and corrections, against tables and an independent sum."""

import math
import random
import statistics

import pytest

from flytune.caches.regression.significance import holm, upper_tail
from flytune.caches.regression.spread import (
    PRIOR,
    Drawn,
    middle,
    moderated,
    round_error,
)


@pytest.mark.parametrize(
    ("t", "freedom", "p_value"),
    [
        # Of printed tables of Student's distribution.
        (6.314, 1, 0.05),
        (2.920, 2, 0.05),
        (3.365, 5, 0.01),
        (2.764, 10, 0.01),
        (3.850, 20, 0.0005),
        (3.291, 1e7, 0.0005),
        (0.0, 3, 0.5),
    ],
)
def test_the_tail_is_that_of_tables(t: float, freedom: float, p_value: float) -> None:
    assert upper_tail(t, freedom) == pytest.approx(p_value, rel=2e-3)
    assert upper_tail(-t, freedom) == pytest.approx(1 - p_value, rel=2e-3)


def test_the_tail_falls_all_the_way() -> None:
    values = [upper_tail(t / 4, 7.5) for t in range(-200, 200)]
    assert values == sorted(values, reverse=True)
    assert all(0 < value < 1 for value in values)
    assert upper_tail(math.inf, 3) == 0.0


def test_holm_corrects_step_by_step() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.5, 0.9]) == (1.0, 1.0)
    assert holm([]) == ()


def test_an_outlier_does_not_widen_the_spread_much() -> None:
    draw = random.Random(1)
    lists = [[draw.gauss(0, 0.01)] for _ in range(40)]
    clean = Drawn.of(lists).without(None, a_middle_each=False)
    spoilt = Drawn.of([*lists, [0.5]]).without(None, a_middle_each=False)
    assert clean.deviation == pytest.approx(0.01, rel=0.25)
    assert spoilt.deviation < 1.2 * clean.deviation
    assert spoilt.freedom == clean.freedom + 1


def test_a_list_is_not_measured_by_itself() -> None:
    drawn = Drawn.of([[0.01], [-0.01], [0.012], [0.03]])
    alone = Drawn.of([[0.01], [-0.01], [0.012], []])
    left = drawn.without(3, a_middle_each=False)
    other = alone.without(None, a_middle_each=False)
    assert left.deviation == pytest.approx(other.deviation)
    assert left.freedom == other.freedom


def test_nothing_known_is_the_prior() -> None:
    assert moderated(0.0, 0.0).deviation == pytest.approx(PRIOR / 2**0.5)
    nothing = Drawn.of([[], []]).without(0, a_middle_each=True)
    assert nothing == moderated(0.0, 0.0)


def test_the_prior_only_adds() -> None:
    far, near = moderated(9 * 0.03**2, 9.0), moderated(9 * 0.001**2, 9.0)
    assert (far.deviation, far.freedom) == (pytest.approx(0.03), 9.0)
    assert 0.001 < near.deviation < PRIOR
    assert near.freedom == 13.0


def test_the_error_of_rounds_is_that_of_their_median() -> None:
    draw = random.Random(2)
    medians, errors = [], []
    for _ in range(400):
        rounds = [100 + draw.gauss(0, 2) for _ in range(25)]
        medians.append(math.log(statistics.median(rounds)))
        errors.append(round_error(rounds, statistics.median(rounds)))
    assert statistics.median(errors) == pytest.approx(
        statistics.stdev(medians), rel=0.1
    )
    assert round_error([1.0], 1.0) == 0.0


def test_the_middle_of_siblings_is_not_moved_by_one() -> None:
    assert middle([0.01, 0.03]) == (pytest.approx(0.02), 0.5)
    assert middle([0.0, 0.001, 0.9])[0] == 0.001
