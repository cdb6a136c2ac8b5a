"""What the times on record leave open, decided on times that are taken again.

Who takes them is not asked here: a `Retime` does, of the winners of the lists that it
is given. Where the records can be compared, those are the lists that got slower by more
than is allowed, or that another kernel won and that may have, for all the records tell;
all of a forward pass that may have; and those without a time. Else all.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from flytune.caches.regression.finding import Finding, Kind, found
from flytune.caches.regression.kernels import is_alike
from flytune.caches.regression.limits import Threshold
from flytune.caches.regression.raced import Race, Raced, Told
from flytune.caches.regression.shifts import Shift, is_timed
from flytune.caches.regression.sides import Pair, Sides
from flytune.caches.regression.spread import Spread
from flytune.caches.regression.times import Compared, Times

Thresholds = Callable[[str], Threshold]
"""Returns the thresholds of a list by its name."""


_LIKELY = 2.0
"""Standard errors by which a shift may well be larger than it looks."""


class Retime(Protocol):
    """Times the winners of lists again, both in turn, on the device at hand."""

    device: str
    """The device's name."""
    unable: str
    """Why nothing can be timed here, lower case; "" where something can."""

    def is_here(self, sides: Sides) -> bool:
        """Whether that device is the very hardware that both bundles are for."""

    def __call__(
        self, pairs: Sequence[Pair], thresholds: Thresholds, others: int
    ) -> Sequence[Raced]:
        """Return what came of each list, in their order.

        Args:
            pairs: Lists that have a winner in both bundles.
            thresholds: What is allowed.
            others: How many tests there are beside those of the lists that race: all
                correct one another.

        Raises:
            FlytuneError: nothing can be timed here.
        """


@dataclass(frozen=True, slots=True)
class Retimed:
    """All lists that were to be timed again."""

    device: str = ""
    """Its name; "" where nothing can be timed here."""
    unable: str = ""
    """Why not; "" where something can."""
    here: bool = True
    """Whether both bundles are for that very device."""
    every: bool = False
    """Whether the records decide nothing, and only what was timed again does."""
    lists: Mapping[int, tuple[Pair, Raced]] = field(default_factory=dict)
    """By `id` of the pair."""

    @property
    def raced(self) -> int:
        """How many lists were timed."""
        return sum(bool(raced.values) for _, raced in self.lists.values())

    @property
    def same(self) -> int:
        """How many lists have one kernel in both bundles."""
        return sum(raced.same for _, raced in self.lists.values())

    @property
    def processes(self) -> tuple[int, int]:
        """The fewest and the most processes that a list took."""
        numbers = [len(r.values) for _, r in self.lists.values() if r.values]
        return min(numbers, default=0), max(numbers, default=0)

    def of(self, pair: Pair) -> Raced | None:
        """Return what came of a list; None where its records decide."""
        found_ = self.lists.get(id(pair))
        return None if found_ is None else found_[1]


def retimed(
    sides: Sides,
    recorded: Times | None,
    thresholds: Thresholds,
    retime: Retime,
    sums: int,
) -> Retimed:
    """Time again what the records leave open.

    Args:
        recorded: What they decide; None where they decide nothing. They are not asked
            either where the device at hand is another than theirs.
        sums: How many sums over forward passes there are at most.

    Raises:
        FlytuneError: nothing can be timed here.
    """
    here = retime.is_here(sides)
    if not here and not retime.unable:
        recorded = None
    waiting = list(_open(sides, recorded))
    others = sums if recorded is None else recorded.tests
    done = retime(waiting, thresholds, others) if waiting else ()
    return Retimed(
        "" if retime.unable else retime.device,
        retime.unable,
        here,
        recorded is None,
        {id(pair): (pair, one) for pair, one in zip(waiting, done, strict=True)},
    )


def _open(sides: Sides, recorded: Times | None) -> Iterator[Pair]:
    """Yield the lists that the records do not decide, of those that two kernels won."""
    tested = (
        {id(one.shift.pair): one for one in recorded.lists if one.shift}
        if recorded
        else {}
    )
    summed = {
        id(pair)
        for one in (recorded.passes if recorded else ())
        if one.over and not one.slower
        for pair in one.pairs
    }
    for pair in sides.pairs:
        old, new = pair.old.winner, pair.new.winner
        if old is None or new is None:
            # Nothing won, so that there is nothing to time.
            continue
        one = tested.get(id(pair))
        if recorded is None:
            yield pair
        elif one is not None:
            spread = recorded.spread
            if _may_be_over(one, spread) or id(pair) in summed:
                yield pair
        elif not (is_timed(old) and is_timed(new)):
            yield pair


def _may_be_over(one: Compared, spread: Spread | None) -> bool:
    """Whether a list may be slower by more than is allowed, for all the records tell.

    What differs from build to build may hide a part of it. One kernel is no slower than
    itself: there only what it seems to be is asked.
    """
    shift = one.shift
    if one.over or shift is None or is_alike(shift.old, shift.new):
        return one.over
    error = math.hypot(shift.error, spread.deviation if spread else 0.0)
    most_us = one.old_us * math.exp(shift.shift + _LIKELY * error)
    return replace(one, new_us=most_us).over


def shifts_again(
    recorded: Sequence[Shift], timed: Retimed, thresholds: Thresholds
) -> list[Shift]:
    """Return the shifts of all lists, with those that were timed again in place."""
    by_pair = {id(one.pair): one for one in recorded}
    shifts = []
    for key, (pair, raced) in timed.lists.items():
        before = by_pair.pop(key, None)
        if raced.values:
            shifts.append(_of_race(pair, before, raced, thresholds(pair.name)))
        elif raced.same and before is not None and (timed.here or not timed.every):
            shifts.append(replace(before, shift=0.0, error=0.0, race=Race(1.0)))
        elif before is not None and not timed.every:
            shifts.append(before)
    if not timed.every:
        return [*by_pair.values(), *shifts]
    # By kernels of another device, or of another state of it, nothing is measured.
    return [replace(one, kernels=(), siblings=()) for one in shifts]


def _of_race(
    pair: Pair, before: Shift | None, raced: Raced, threshold: Threshold
) -> Shift:
    old, new = pair.old.winner, pair.new.winner
    assert old is not None, "both were timed"
    assert new is not None, "both were timed"
    measured = raced.measured(threshold)
    new_us = raced.old_us * math.exp(measured.shift)
    return Shift(
        pair,
        replace(old, median_us=raced.old_us),
        replace(new, median_us=new_us),
        measured.shift,
        measured.error,
        () if before is None else before.kernels,
        () if before is None else before.siblings,
        measured.race,
    )


def undecided(times: Times, timed: Retimed) -> Iterator[Finding]:
    """Yield the lists that could not be decided here, with why."""
    tested = {id(one.shift.pair): one for one in times.lists if one.shift}
    for key, (pair, raced) in timed.lists.items():
        one = tested.get(key)
        if raced.why:
            # What the records do decide stands as it is.
            if one is None or (one.over and not one.slower):
                yield found(Kind.RETIME, pair.name, raced.why)
        elif raced.values and one is not None and not one.slower:
            yield from _of_open(pair, raced, one, times.tests)


def _of_open(pair: Pair, raced: Raced, one: Compared, tests: int) -> Iterator[Finding]:
    measured = raced.measured(one.threshold)
    if measured.told(tests) is Told.FINE:
        return
    low, high = (
        math.expm1(measured.shift + sign * 2 * measured.error) for sign in (-1, 1)
    )
    text = (
        f"{raced.old_us:.2f} us, between {low:+.1%} and {high:+.1%} with the new "
        f"winner: {len(raced.values)} processes do not tell whether that is too much"
    )
    hint = "wait until nothing else uses the device, or allow more"
    yield found(Kind.RETIME, pair.name, text, hint, low=low, high=high)
