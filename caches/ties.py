"""Which candidates of one list cannot be told from the fastest, by their samples."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TIE_BAND = 0.01
"""Candidates within this share of the fastest are tied, however sure the difference."""
SAME_BAND = 0.02
"""Share by which the times of one kernel may differ from one tune to another."""
SURE = 4.0
"""Standard errors from nothing at which a difference is believed."""
# Standard errors by which a difference may well be larger than it looks.
_LIKELY = 2.0
# A round this many interquartile ranges beyond the quartiles, four deviations of a
# normal distribution from its middle, is an outlier, and counts as if it lay there.
_OUTLIER_RANGES = 2.5


@dataclass(frozen=True, slots=True)
class Spread:
    """The summary of one candidate's samples."""

    median_us: float
    mad_us: float
    """Median absolute deviation."""


def spread(samples_us: Sequence[float]) -> Spread:
    """Return median and spread of at least one sample."""
    median = statistics.median(samples_us)
    mad = statistics.median(abs(sample - median) for sample in samples_us)
    return Spread(median, mad)


def tied_with_fastest(samples_us: Mapping[str, Sequence[float]]) -> frozenset[str]:
    """Return the candidates that are not surely slower than the fastest."""
    return frozenset(samples_us) - beaten(samples_us)


def beaten(
    samples_us: Mapping[str, Sequence[float]], band: float = TIE_BAND
) -> frozenset[str]:
    """Return the candidates that are surely slower than the fastest, by over `band`."""
    if not samples_us:
        return frozenset()
    fastest = _fastest(samples_us)
    best = samples_us[fastest]
    return frozenset(
        name
        for name, samples in samples_us.items()
        if name != fastest and _surely_slower(samples, best, band)
    )


def undecided(samples_us: Mapping[str, Sequence[float]], settled: float) -> bool:
    """Whether more rounds might yet separate a candidate from the fastest.

    True while a candidate is neither surely slower nor surely tied: a difference that
    happens to be small is no tie while it may well be more than `settled`, a share of
    the fastest's time.
    """
    if len(samples_us) < 2:
        return False
    fastest = _fastest(samples_us)
    best = samples_us[fastest]
    for name, samples in samples_us.items():
        if name == fastest or _surely_slower(samples, best, TIE_BAND):
            continue
        difference, error = _difference(samples, best)
        most = difference + _LIKELY * error
        if most > settled * statistics.median(best):
            return True
    return False


def _fastest(samples_us: Mapping[str, Sequence[float]]) -> str:
    return min(samples_us, key=lambda name: (statistics.median(samples_us[name]), name))


def _surely_slower(
    samples: Sequence[float], best: Sequence[float], band: float
) -> bool:
    difference, error = _difference(samples, best)
    far = difference > band * statistics.median(best)
    return far and difference - SURE * error > 0


def _difference(samples: Sequence[float], best: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the rounds' differences and its standard error, in us.

    Both candidates ran in every round, so a drift cancels in the difference; and
    outliers are drawn in. A mean tells more from as many rounds than a median does.
    """
    return drawn_mean([a - b for a, b in zip(samples, best, strict=True)])


def drawn_mean(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values, outliers drawn in, and its standard error.

    Of one value the error is infinite.
    """
    if len(values) < 2:
        return values[0], math.inf
    low, _, high = statistics.quantiles(values)
    reach = _OUTLIER_RANGES * (high - low)
    drawn_in = [min(max(value, low - reach), high + reach) for value in values]
    mean = statistics.fmean(drawn_in)
    # `statistics.stdev` counts in fractions, which takes ten times as long.
    squares = math.fsum((value - mean) ** 2 for value in drawn_in)
    number = len(drawn_in)
    return mean, math.sqrt(squares / (number - 1) / number)
