"""Which lists and which forward passes got slower, by the shifts of two bundles.

Where the shifts come from is not asked here: `shifts` takes them from the records.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from flytune.caches.regression.cause import cause_of, us
from flytune.caches.regression.finding import BUNDLE, Finding, Kind, found, noted
from flytune.caches.regression.limits import Limits, Threshold
from flytune.caches.regression.shifts import Shift
from flytune.caches.regression.sides import Pair
from flytune.caches.regression.significance import FALSE_ALARMS, holm
from flytune.caches.regression.spread import Spread
from flytune.caches.regression.yardstick import Yardstick
from flytune.caches.words import tokens_text

PASS = "forward pass"
"""What the sum over all lists is called; with a token count, over those of it."""

_UNSURE = "; not sure: two builds of one kernel may differ by as much"
_DECIDE = "--retime decides it"


@dataclass(frozen=True, slots=True)
class Compared:
    """One test: a list's time, or that of a forward pass."""

    name: str
    old_us: float
    new_us: float
    count: int
    """Calls of a list in a forward pass, or lists in the sum."""
    p_value: float
    """Corrected for all tests together."""
    threshold: Threshold
    shift: Shift | None
    """None of a forward pass."""
    pairs: tuple[Pair, ...] = ()
    """The lists of a forward pass."""
    faster_p: float | None = None
    """As `p_value`, but of so large a gain; None where that is not asked."""

    @property
    def ratio(self) -> float:
        """The new time over the old one."""
        return self.new_us / self.old_us

    @property
    def over(self) -> bool:
        """Whether it is slower by more than the thresholds allow, sure or not."""
        return (
            self.ratio > 1 + self.threshold.max_regression
            and self.new_us - self.old_us > self.threshold.floor_us
        )

    @property
    def slower(self) -> bool:
        """Whether it is a regression."""
        return self.over and self.p_value <= FALSE_ALARMS

    @property
    def under(self) -> bool:
        """Whether it is faster by more than such a loss is allowed, sure or not."""
        return (
            self.ratio < 1 / (1 + self.threshold.max_regression)
            and self.old_us - self.new_us > self.threshold.floor_us
        )

    @property
    def faster(self) -> bool:
        """Whether it surely is."""
        return self.faster_p is not None and self.faster_p <= FALSE_ALARMS


@dataclass(frozen=True, slots=True)
class Times:
    """All tests of a comparison."""

    lists: tuple[Compared, ...] = ()
    passes: tuple[Compared, ...] = ()
    """A forward pass's GEMM time by token count, and in all."""
    spread: Spread | None = None
    """From tune to tune, of one kernel; None where no list has two times."""

    @property
    def tests(self) -> int:
        """How many tests were made, which correct one another."""
        certain = sum(one.shift.certain for one in self.lists if one.shift)
        return len(self.lists) - certain + len(self.passes)

    @property
    def kernels(self) -> int:
        """How many kernels, the same in both bundles, the spread is from."""
        return sum(len(one.shift.kernels) for one in self.lists if one.shift)


def decide(
    shifts: Sequence[Shift],
    canary: float,
    limits: Limits,
    default: Threshold,
    tokens: Iterable[int],
    *,
    passes: bool = True,
) -> Times:
    """Test every list and every forward pass.

    Args:
        canary: Logarithm of the new canary's time over the old one's.
        tokens: The static sizes; a list whose rows are none of them is in the sum of
            all alone.
        passes: Whether all times are of one device, so that they make a sum.
    """
    if not shifts:
        return Times()
    yardstick = Yardstick.of(shifts, canary)
    sums = dict(_sums(shifts, tokens)) if passes else {}
    raw = [
        yardstick.p_value(shifts, at)
        for at, one in enumerate(shifts)
        if not one.certain
    ]
    raw += [yardstick.p_of_sum(shifts, _shares(shifts, some)) for some in sums.values()]
    p_values = iter(holm(raw))
    lists = tuple(
        Compared(
            *(one.name, one.old_us, one.new_us, one.count),
            1.0 if one.certain else next(p_values),
            limits.threshold(one.name, default),
            one,
        )
        for one in shifts
    )
    summed = tuple(
        Compared(
            name,
            sum(one.old_us * one.count for one in some),
            sum(one.new_us * one.count for one in some),
            *(len(some), next(p_values), limits.threshold(name, default), None),
            tuple(one.pair for one in some),
        )
        for name, some in sums.items()
    )
    return Times(_gains(lists, shifts, canary), summed, yardstick.spread())


def _gains(
    lists: tuple[Compared, ...], shifts: Sequence[Shift], canary: float
) -> tuple[Compared, ...]:
    """Test whether lists got faster: as they are slower with the bundles swapped."""
    if not any(one.under for one in lists):
        return lists
    swapped = [
        replace(
            one,
            shift=-one.shift,
            kernels=tuple(-shift for shift in one.kernels),
            siblings=tuple(-shift for shift in one.siblings),
        )
        for one in shifts
    ]
    yardstick = Yardstick.of(swapped, -canary)
    return tuple(
        replace(one, faster_p=min(1.0, len(lists) * yardstick.p_value(swapped, at)))
        if one.under
        else one
        for at, one in enumerate(lists)
    )


def findings_of(
    times: Times, *, same_software: bool, retimed: bool
) -> Iterator[Finding]:
    """Yield what got slower and faster, with causes.

    Args:
        retimed: Whether what was open has been timed again, which is no advice then.
    """
    decide_by = "" if retimed else _DECIDE
    for one in times.lists:
        assert one.shift is not None, "a list has one"
        if one.over:
            cause = cause_of(one.shift, same_software=same_software, retimed=retimed)
            yield from _of_slower(one, one.shift, cause, decide_by)
        elif one.faster_p is not None and one.faster:
            text = _change(one, one.faster_p)
            yield noted(Kind.FASTER, one.name, text, "", **numbers(one))
    for one in times.passes:
        text = f"its GEMMs take {_change(one, one.p_value)}"
        if one.slower:
            hint = "the lists that got slower say why"
            yield found(Kind.SLOWER_PASS, one.name, text, hint, **numbers(one))
        elif one.over:
            text += _UNSURE
            yield noted(Kind.UNSURE, one.name, text, decide_by, **numbers(one))


def noisy(times: Times, threshold: Threshold, *, retimed: bool) -> Iterator[Finding]:
    """Say where builds differ by more than is to be found.

    Args:
        threshold: Of lists that have no limit of their own.
        retimed: As for `findings_of`.
    """
    by_records = any(one.shift and one.shift.race is None for one in times.lists)
    spread, most = times.spread, threshold.max_regression
    if spread is None or not by_records or spread.deviation <= most:
        return
    text = (
        f"one kernel differs by {spread.deviation:.1%} from build to build, more than "
        f"the {most:.1%} that a list may lose: so little is not found; build both "
        "again where nothing else runs"
    )
    yield noted(Kind.NOISE, BUNDLE, text if retimed else f"{text}, or --retime")


def _of_slower(
    one: Compared, shift: Shift, cause: tuple[str, str], decide_by: str
) -> Iterator[Finding]:
    why, hint = cause
    text = f"{_change(one, one.p_value)}; {why}"
    values = {**numbers(one), "cause": why}
    if one.slower:
        yield found(Kind.SLOWER, one.name, text, hint, **values)
    # What was timed again and is not sure is said where it is told how far.
    elif shift.race is None or shift.race.looks == 1:
        yield noted(Kind.UNSURE, one.name, text + _UNSURE, decide_by, **values)


def numbers(one: Compared) -> dict[str, float]:
    """Return the numbers of a test, for a program."""
    return {
        "old_us": one.old_us,
        "new_us": one.new_us,
        "ratio": one.ratio,
        "p_value": one.p_value,
        "max_regression": one.threshold.max_regression,
        "floor_us": one.threshold.floor_us,
    }


def _change(one: Compared, p_value: float) -> str:
    """Return both times, and how likely so much is by chance."""
    change = f"{us(one.old_us)} -> {us(one.new_us)} us, {one.ratio - 1:+.1%}"
    return f"{change}, {p_words(p_value)}"


def p_words(p_value: float) -> str:
    """Return a p-value as the tables print it."""
    return "p <0.0001" if p_value < 1e-4 else f"p {p_value:.2g}"


def _sums(
    shifts: Sequence[Shift], tokens: Iterable[int]
) -> Iterator[tuple[str, list[Shift]]]:
    """Yield the forward passes: of each token count, and of all where that is more."""
    by_tokens: dict[int, list[Shift]] = {count: [] for count in sorted(set(tokens))}
    for one in shifts:
        if (some := by_tokens.get(tokens_of(one))) is not None:
            some.append(one)
    some_have = {count: some for count, some in by_tokens.items() if some}
    for count, some in some_have.items():
        yield f"{PASS} at {tokens_text(count)}", some
    if len(some_have) != 1 or len(shifts) != sum(map(len, some_have.values())):
        yield PASS, list(shifts)


def tokens_of(one: Shift) -> int:
    """Return the rows of a list: the tokens of a forward pass, for a linear."""
    return one.pair.new.shape.m


def _shares(shifts: Sequence[Shift], some: Sequence[Shift]) -> list[float]:
    """Return the part that each list has in the old sum of some of them."""
    inside = {id(one) for one in some}
    times = [one.old_us * one.count * (id(one) in inside) for one in shifts]
    whole = math.fsum(times)
    return [time_us / whole if whole else 0.0 for time_us in times]
