"""The probability that a shift is due to the two tunes alone."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flytune.caches.regression.shifts import Shift
from flytune.caches.regression.significance import TINY, upper_tail
from flytune.caches.regression.spread import Drawn, Spread, middle

# Siblings excuse a list by no more than so many deviations of whole lists.
_EXCUSE = 3.0


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What shifts are measured by: those of kernels that are in both bundles."""

    lists: Drawn
    """Of each list the mean shift of its kernels, about the middle of all lists."""
    kernels: Drawn
    """Of each list the shifts of its kernels, about their mean."""
    each: float
    """Mean of the lists' 1 / kernels."""
    canary: float
    """Logarithm of the new canary's time over the old one's, where it got slower."""

    @classmethod
    def of(cls, shifts: Sequence[Shift], canary: float) -> "Yardstick":
        """Return the yardstick of all lists.

        Args:
            canary: Logarithm of the new canary's time over the old one's.
        """
        means = [_mean(one.kernels) for one in shifts]
        flat = [value for some in means for value in some]
        numbers = [1 / len(one.kernels) for one in shifts if one.kernels]
        return cls(
            Drawn.of(means, about=statistics.median(flat) if flat else 0.0),
            Drawn.of([_residuals(one.kernels) for one in shifts]),
            statistics.fmean(numbers) if numbers else 1.0,
            max(0.0, canary),
        )

    def spread(self) -> Spread:
        """Return by how much one kernel differs from tune to tune."""
        return self._whole(None, math.inf)[0]

    def p_value(self, shifts: Sequence[Shift], at: int) -> float:
        """Return the probability of so large a shift of one list by chance.

        The middle of the list's siblings is taken off by the share, between 0 and 1,
        that tells most: all of it where lists shift as one, nothing where kernels shift
        each by itself.
        """
        one = shifts[at]
        if one.race is not None:
            return one.race.p_value(one.shift, one.error)
        about, kernels = middle(one.siblings) if one.siblings else (0.0, math.inf)
        spread, share, list_deviation = self._whole(at, kernels)
        most = _EXCUSE * list_deviation
        excuse = max(-most, min(most, about - self.canary)) if one.siblings else 0.0
        excess = one.shift - self.canary - share * excuse
        return upper_tail(
            excess / math.hypot(spread.deviation, one.error), spread.freedom
        )

    def p_of_sum(self, shifts: Sequence[Shift], shares: Sequence[float]) -> float:
        """Return the same of a weighted sum of lists, which shift independently.

        Args:
            shares: Of each list in the old sum; zero for those that are not in it.
        """
        spread = self.spread()
        freedom, looks = spread.freedom, 1
        variance = shift = canary = 0.0
        for one, share in zip(shifts, shares, strict=True):
            tunes = spread.deviation
            if one.race is None:
                canary += share * self.canary
            else:
                tunes = 0.0
                if share and one.error:
                    # As few as the least well known part has.
                    freedom = min(freedom, one.race.freedom)
                    looks = max(looks, one.race.looks)
            variance += share**2 * (tunes**2 + one.error**2)
            shift += share * math.expm1(one.shift)
        excess = math.log1p(shift) - canary
        p_value = upper_tail(excess / max(math.sqrt(variance), TINY), freedom)
        return min(1.0, looks * p_value)

    def _whole(self, at: int | None, kernels: float) -> tuple[Spread, float, float]:
        """Return how one list shifts, given its siblings.

        A kernel's shift is one of its list and one of its own. Source: the analysis of
        variance with one random effect, the best linear prediction of that effect, and
        Satterthwaite's degrees of freedom.

        Args:
            at: The list that is measured, and left out.
            kernels: Variance of the siblings' middle in units of one kernel's; infinity
                where there are none.

        Returns:
            The spread, the share of the siblings' middle to take off, and the
            deviation of whole lists.
        """
        means = self.lists.without(at, a_middle_each=False)
        own = self.kernels.without(at, a_middle_each=True)
        between, within = means.deviation**2, own.deviation**2
        of_list = max(0.0, between - within * self.each)
        share = of_list / (of_list + within * kernels)
        first = between * (1 - share)
        second = within * (1 - self.each * (1 - share))
        variance = first + second
        freedom = variance**2 / (first**2 / means.freedom + second**2 / own.freedom)
        return Spread(math.sqrt(variance), freedom), share, math.sqrt(of_list)


def _mean(shifts: Sequence[float]) -> list[float]:
    return [statistics.fmean(shifts)] if shifts else []


def _residuals(shifts: Sequence[float]) -> list[float]:
    """Return what is left of shifts without their mean; nothing of a lone one."""
    if len(shifts) < 2:
        return []
    mean = statistics.fmean(shifts)
    return [shift - mean for shift in shifts]
