"""How much the time of one and the same kernel differs from one tune to another."""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PRIOR = 0.01
"""What two tunes are held to differ by where nothing is known, as a share: half of its
square by list, half by kernel."""
PRIOR_KERNELS = 4.0
"""So many kernels the prior weighs."""
LEAST_ROUNDS = 5
"""Rounds that a time is made of, at least, to tell of the spread."""
# Of a normal distribution, over its median absolute deviation.
_SIGMA = 1.4826
# Values are drawn in to so many deviations from the middle.
_REACH = 3.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A standard deviation, and how well it is known."""

    deviation: float
    """Of the logarithm of a ratio."""
    freedom: float
    """Degrees of freedom: the kernels that it was estimated from, with the prior's."""


@dataclass(frozen=True)
class Drawn:
    """Values by the list that they are of, about a middle and drawn in towards it.

    How far is told by all of them; a list's own are left out of what it is measured by.
    """

    values: tuple[tuple[float, ...], ...]
    """By list; some have none."""

    @classmethod
    def of(cls, values: Sequence[Sequence[float]], *, about: float = 0.0) -> "Drawn":
        """Draw in the values of each list.

        Args:
            about: Their middle, which is taken off.
        """
        far = [abs(value - about) for some in values for value in some]
        if not far:
            return cls(tuple(() for _ in values))
        most = _REACH * _SIGMA * statistics.median(far)
        return cls(
            tuple(
                tuple(max(-most, min(most, value - about)) for value in some)
                for some in values
            )
        )

    @functools.cached_property
    def lists(self) -> int:
        """How many lists have values."""
        return sum(map(bool, self.values))

    @functools.cached_property
    def _squares(self) -> float:
        return sum(map(_square, self.values))

    @functools.cached_property
    def _number(self) -> int:
        return sum(map(len, self.values))

    def without(self, at: int | None, *, a_middle_each: bool) -> Spread:
        """Return the spread of all lists, or of all but one.

        Args:
            at: The list that is left out.
            a_middle_each: Whether each list lost a degree of freedom to a middle of its
                own; else all lost one to theirs.
        """
        own = () if at is None else self.values[at]
        squares = self._squares - _square(own)
        lost = self.lists - bool(own) if a_middle_each else 1
        return moderated(max(0.0, squares), max(0, self._number - len(own) - lost))


def _square(values: Sequence[float]) -> float:
    return sum(value * value for value in values)


def moderated(squares: float, freedom: float) -> Spread:
    """Return the spread of values whose squares sum so, with the prior taken in.

    Only upwards: tunes that differ more than the prior says do so.

    Source: G. K. Smyth, "Linear models and empirical Bayes methods", 2004, (3): the
    variance that is held for known weighs as so many more degrees of freedom.
    """
    prior = PRIOR**2 / 2
    if freedom and squares > freedom * prior:
        return Spread(math.sqrt(squares / freedom), freedom)
    whole = freedom + PRIOR_KERNELS
    return Spread(math.sqrt((squares + PRIOR_KERNELS * prior) / whole), whole)


def round_error(samples_us: Sequence[float], median_us: float) -> float:
    """Return the standard error of a median's logarithm, from its rounds.

    An outlying round moves no median, and is drawn in. Source: the error of a median is
    that of a mean times sqrt(pi / 2), for a normal distribution.
    """
    if len(samples_us) < 2:
        return 0.0
    (drawn,) = Drawn.of([samples_us], about=median_us).values
    variance = _square(drawn) / (len(drawn) - 1)
    return math.sqrt(math.pi / 2 * variance / len(drawn)) / median_us


def middle(shifts: Sequence[float]) -> tuple[float, float]:
    """Return the middle of a list's siblings, and its variance in units of theirs.

    Source: of more than two a median, whose variance is at most pi / 2 of a mean's.
    """
    if len(shifts) < 3:
        return statistics.fmean(shifts), 1 / len(shifts)
    return statistics.median(shifts), math.pi / 2 / len(shifts)
