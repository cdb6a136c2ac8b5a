"""How often a comparison errs: one thing tuned twice, and one list that got slower.

Times are drawn as two processes would have them: a list's times are off together, a
kernel's by itself, and each round by a little more; the fastest wins, as in a race.
"""

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tuned_bundles import Tune, shape, usual

from flytune.caches.lists import TunedList, lists_of
from flytune.caches.regression.limits import Limits, Threshold
from flytune.caches.regression.shifts import Shift, shift_of
from flytune.caches.regression.sides import Pair
from flytune.caches.regression.times import Times, decide

LISTS = 20
ROUNDS = 15
# Shares by which a kernel is slower than the first of its list: a tie, and others.
BEHIND = (0.0, 0.002, 0.01, 0.06, 0.15)
CLEAR = (0.0, 0.08, 0.1, 0.15, 0.2)
DEFAULT = Threshold(0.03, 0.2)


def pairs(kernels: int) -> list[Pair]:
    """Lists to hang drawn times on: shapes, counts and token counts."""
    made = []
    for number in range(LISTS):
        gemm = shape(number, m=(1, 16)[number % 2], count=4)
        (one,) = lists_of(Tune(number).list_of(gemm, usual(20.0 + number)[:kernels]))
        made.append(Pair(one, one, (4, 4)))
    return made


def tune(
    draw: random.Random, truth: list[float], together: float, apart: float
) -> list[list[float]]:
    """The rounds of one list's kernels, as one process takes them."""
    shared = draw.gauss(0, together)
    rounds = []
    for kernel in truth:
        middle = kernel * (1 + shared + draw.gauss(0, apart))
        rounds.append([middle * (1 + draw.gauss(0, 0.004)) for _ in range(ROUNDS)])
    return rounds


def shift(pair: Pair, old: list[list[float]], new: list[list[float]]) -> Shift:
    """What the records of two tunes come to."""
    named = {r.choice_hash: n for n, r in enumerate(pair.old.records)}

    def with_rounds(one: TunedList, rounds: list[list[float]]) -> TunedList:
        medians = [statistics.median(some) for some in rounds]
        records = tuple(
            replace(
                record,
                median_us=medians[named[record.choice_hash]],
                samples_us=tuple(rounds[named[record.choice_hash]]),
                winner=medians[named[record.choice_hash]] == min(medians),
            )
            for record in one.records
        )
        return TunedList(records)

    both = Pair(with_rounds(pair.old, old), with_rounds(pair.new, new), pair.calls)
    found = shift_of(both, same_software=True)
    assert found is not None
    return found


def comparisons(
    count: int,
    together: float,
    apart: float,
    behind: tuple[float, ...] = BEHIND,
    slow: Callable[[int], float] = lambda _: 0.0,
    seed: int = 1,
) -> Iterator[Times]:
    """Comparisons of two tunes; `slow` is by how much a list's winner got slower.

    The spreads are those of a ratio: of one tune they are less by the root of two.
    """
    draw = random.Random(seed)
    hung = pairs(len(behind))
    root = 2**0.5
    for _ in range(count):
        shifts = []
        for number, pair in enumerate(hung):
            first = 20.0 + 7 * number
            truth = [first * (1 + share) for share in behind]
            now = [truth[0] * (1 + slow(number)), *truth[1:]]
            old = tune(draw, truth, together / root, apart / root)
            new = tune(draw, now, together / root, apart / root)
            shifts.append(shift(pair, old, new))
        yield decide(shifts, 0.0, Limits(), DEFAULT, (1, 16))


def alarms(times: Times) -> bool:
    return any(one.slower for one in (*times.lists, *times.passes))


# By list and by kernel: calm, as noisy as a gate must bear, and much noisier.
SPREADS = ((0.003, 0.003), (0.008, 0.006), (0.0, 0.01), (0.02, 0.01))


def false_alarms(
    count: int, together: float, apart: float, behind: tuple[float, ...] = BEHIND
) -> int:
    """How often one thing tuned twice alarms."""
    return sum(map(alarms, comparisons(count, together, apart, behind)))


def found(count: int, together: float, apart: float) -> tuple[int, int]:
    """How often one list of twenty that is 5 % slower is found, and another is."""
    hits = others = 0
    for times in comparisons(
        count, together, apart, CLEAR, lambda number: 0.05 * (number == 7)
    ):
        slow = {number for number, one in enumerate(times.lists) if one.slower}
        hits += 7 in slow
        others += bool(slow - {7})
    return hits, others


@pytest.mark.parametrize(("together", "apart"), SPREADS)
def test_one_thing_tuned_twice_does_not_alarm(together: float, apart: float) -> None:
    assert false_alarms(25, together, apart) == 0


def test_one_list_of_many_that_got_slower_is_found() -> None:
    """By 5 %, where two tunes of one kernel differ by 1 %."""
    hits, others = found(40, 0.008, 0.006)
    assert hits >= 0.95 * 40
    assert others == 0


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [2, 5])
@pytest.mark.parametrize(("together", "apart"), SPREADS)
def test_false_alarms_are_rare(kernels: int, together: float, apart: float) -> None:
    count = 800
    behind = (0.0, 0.03) if kernels == 2 else BEHIND
    assert false_alarms(count, together, apart, behind) < 0.005 * count


@pytest.mark.slow
@pytest.mark.parametrize(("together", "apart"), [(0.008, 0.006), (0.005, 0.005)])
def test_a_slower_list_is_seldom_missed(together: float, apart: float) -> None:
    hits, others = found(600, together, apart)
    assert hits >= 0.95 * 600
    assert others <= 0.005 * 600
