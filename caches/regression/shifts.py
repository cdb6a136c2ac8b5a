"""How much the time of each list shifted between two bundles, by their own rounds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from flytune.caches.columns import Status
from flytune.caches.records import TuningRecord
from flytune.caches.regression.kernels import code_key, is_same
from flytune.caches.regression.raced import Race
from flytune.caches.regression.sides import Pair
from flytune.caches.regression.spread import LEAST_ROUNDS, round_error

TIMED = "timed"
"""The `source` of a time that a build took itself."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A list that has a time in both bundles.

    What is decided on is here, wherever the times come from: stored rounds, or rounds
    that were taken again.
    """

    pair: Pair
    old: TuningRecord
    """The old winner."""
    new: TuningRecord
    """The new winner, or the very same kernel in the old list where that alone has a
    time."""
    shift: float
    """Logarithm of the new time over the old one."""
    error: float
    """Standard error of the shift, from the rounds alone."""
    kernels: tuple[float, ...]
    """Shifts of the kernels that are the same in both lists: the winner's first, if it
    is one, then by their old times."""
    siblings: tuple[float, ...]
    """Those of them that did not win in either list."""
    race: Race | None = None
    """What both times are of, where no tune is between them."""

    @property
    def name(self) -> str:
        """The list's name."""
        return self.pair.name

    @property
    def certain(self) -> bool:
        """Whether it is that of one kernel to itself, of which nothing is tested."""
        return self.race is not None and not self.shift and not self.error

    @property
    def count(self) -> int:
        """Calls in one forward pass of the new bundle's model."""
        return self.pair.calls[1]

    @property
    def old_us(self) -> float:
        """Median time of the old winner."""
        return time_of(self.old)

    @property
    def new_us(self) -> float:
        """Median time of the new winner."""
        return self.old_us * math.exp(self.shift)


def shift_of(pair: Pair, *, same_software: bool) -> Shift | None:
    """Return the shift of a list by the rounds on record; None without two times."""
    old, new = pair.old.winner, pair.new.winner
    if old is None or new is None or not is_timed(old):
        return None
    race = None
    if not is_timed(new):
        # What is left of a list has no race of its own: it was timed in the old one.
        raced = next(
            (
                record
                for record in pair.old.records
                if is_timed(record)
                and is_same(record, new, same_software=same_software)
            ),
            None,
        )
        if raced is None:
            return None
        # Nothing lies between the two but the rounds of that race.
        rounds = min(len(old.samples_us), len(raced.samples_us))
        new, race = raced, Race(rounds - 1)
    kernels, siblings = _same_kernels(pair, old, new, same_software)
    return Shift(
        pair,
        old,
        new,
        math.log(time_of(new) / time_of(old)),
        math.hypot(_error(old), _error(new)),
        kernels,
        siblings,
        race,
    )


def is_timed(record: TuningRecord) -> bool:
    """Whether a candidate has rounds that its build has taken."""
    return (
        record.status is Status.OK
        and bool(record.median_us)
        and len(record.samples_us) > 1
        and record.source in (TIMED, None)
    )


def time_of(record: TuningRecord) -> float:
    """Return the median of a timed candidate in microseconds."""
    assert record.median_us is not None, "only timed candidates are asked"
    return record.median_us


def is_carried(pair: Pair) -> bool:
    """Whether the new list has the old one's rounds, taken over and not taken again."""
    old, new = pair.old.winner, pair.new.winner
    return (
        old is not None
        and new is not None
        and is_timed(old)
        and any(r.samples_us == old.samples_us for r in pair.new.records)
    )


def _same_kernels(
    pair: Pair, old: TuningRecord, new: TuningRecord, same_software: bool
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the shifts of the kernels that are in both lists, and of the siblings."""
    kernels: list[float] = []
    siblings: list[float] = []
    for one, other in _pairs(pair, same_software):
        value = math.log(time_of(other) / time_of(one))
        if one is old and other is new:
            kernels.insert(0, value)
            continue
        kernels.append(value)
        if one is not old and other is not new:
            siblings.append(value)
    return tuple(kernels), tuple(siblings)


def _pairs(
    pair: Pair, same_software: bool
) -> Iterator[tuple[TuningRecord, TuningRecord]]:
    """Yield the kernels that are in both lists and timed apart, the fastest first."""
    found = {
        code_key(record, same_software=same_software): record
        for record in pair.new.timed()
        if _tells(record)
    }
    found.pop(None, None)
    for old in filter(_tells, pair.old.timed()):
        new = found.pop(code_key(old, same_software=same_software), None)
        if new is not None and old.samples_us != new.samples_us:
            yield old, new


def _tells(record: TuningRecord) -> bool:
    return is_timed(record) and len(record.samples_us) >= LEAST_ROUNDS


def _error(record: TuningRecord) -> float:
    return round_error(record.samples_us, time_of(record))
