"""Whether one kernel is slower than another, by races of the two in several processes.

A process is one value: the logarithm of the new kernel's time over the old one's, from
rounds in which the two took turns. What differs from process to process and meets the
two kernels unlike, above all where their memory lies, is between the values, so that
the values alone tell how sure their mean is.

More processes are run until the answer is sure: after each number of `LOOKS` it is
asked, and the chance of a false alarm is shared out among them. The null hypothesis is
no equality: one kernel has another time in another tune, and a tune takes either of two
that are tied, so that only a shift beyond `SAME_BAND` can be the work of anything else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from flytune.caches.regression.limits import Threshold
from flytune.caches.regression.significance import FALSE_ALARMS, TINY, upper_tail
from flytune.caches.regression.spread import moderated
from flytune.caches.ties import SAME_BAND, drawn_mean

LOOKS = (4, 8, 16, 24)
"""Processes after which it is asked whether the answer is sure."""
MISSES = 0.01
"""Chance, at each look, that a shift above what is allowed passes for one below."""
# After the last look an error of such a part of what is allowed is small enough.
_FINE_PART = 4


class Race(NamedTuple):
    """How the shift of a list is tested whose two times are of the same processes."""

    freedom: float
    """Degrees of freedom of its error."""
    margin: float = 0.0
    """Logarithm of a ratio: a shift up to it is none."""
    looks: int = 1
    """How often it may be asked."""

    def p_value(self, shift: float, error: float) -> float:
        """Return the probability of so large a shift, of a true one of the margin."""
        excess = (shift - self.margin) / max(error, TINY)
        return min(1.0, self.looks * upper_tail(excess, self.freedom))


class Told(Enum):
    """What races of two kernels tell."""

    SLOWER = auto()
    FINE = auto()
    OPEN = auto()
    """Neither: more processes may tell."""


@dataclass(frozen=True, slots=True)
class Raced:
    """What came of timing the winners of one list again."""

    values: tuple[float, ...] = ()
    """By process; none where nothing was to be timed, or could be."""
    old_us: float = 0.0
    """Median time of the old winner in microseconds; 0 where nothing was timed."""
    same: bool = False
    """Whether both winners are one kernel, which is no slower than itself."""
    why: str = ""
    """Why it cannot be decided here, lower case and without a full stop."""

    def measured(self, threshold: Threshold) -> "Measured":
        """Return the shift, of at least two values, under a list's thresholds."""
        mean, error = drawn_mean(self.values)
        number = len(self.values)
        spread = moderated(error**2 * number * (number - 1), number - 1)
        margin = math.log1p(min(SAME_BAND, threshold.max_regression))
        # The prior keeps few that agree too well from being believed, and adds none.
        race = Race(number - 1, margin, len(LOOKS))
        # A difference that is below the floor is none, whatever its share.
        share = max(threshold.max_regression, threshold.floor_us / self.old_us)
        final = number >= LOOKS[-1]
        deviation = spread.deviation / math.sqrt(number)
        return Measured(mean, deviation, race, math.log1p(share), final)


class Measured(NamedTuple):
    """A shift that was raced for."""

    shift: float
    error: float
    race: Race
    allowed: float
    """Logarithm of the ratio that is allowed."""
    final: bool
    """Whether no more processes will be run."""

    def told(self, tests: int) -> Told:
        """Return whether it is slower.

        Args:
            tests: How many correct one another.
        """
        if self.shift > self.allowed:
            p_value = self.race.p_value(self.shift, self.error)
            return Told.SLOWER if p_value * tests <= FALSE_ALARMS else Told.OPEN
        below = (self.allowed - self.shift) / max(self.error, TINY)
        sure = upper_tail(below, self.race.freedom) <= MISSES
        precise = self.final and self.error <= self.allowed / _FINE_PART
        return Told.FINE if sure or precise else Told.OPEN


def sure(
    raced: Sequence[float], old_us: float, threshold: Threshold, tests: int
) -> bool:
    """Return whether so many values tell."""
    return Raced(tuple(raced), old_us).measured(threshold).told(tests) is not Told.OPEN
