"""Tail probabilities of Student's distribution, and Holm's correction of many."""

import math
from collections.abc import Sequence

FALSE_ALARMS = 0.0025
"""Share of comparisons of one thing with itself that may alarm, all tests together:
half of the one in 200 that a gate may have, as the spread is only estimated."""
TINY = 1e-9
"""The error of times without any spread, as a share."""
_LEAST = 1e-300
_TERMS = 300


def upper_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's variable exceeds `t`.

    Args:
        freedom: Degrees of freedom, above 0; may be broken.
    """
    if not math.isfinite(t):
        return 0.0 if t > 0 else 1.0
    outside = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    return outside / 2 if t >= 0 else 1 - outside / 2


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values corrected for one another, in their order.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    corrected = [1.0] * len(p_values)
    least = 0.0
    for rank, at in enumerate(order):
        least = max(least, min(1.0, p_values[at] * (len(p_values) - rank)))
        corrected[at] = least
    return tuple(corrected)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction.

    Source: NIST Digital Library of Mathematical Functions, 8.17.22.
    """
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logs + a * math.log(x) + b * math.log1p(-x)) / a
    return front / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction from its first term, by Lentz's method."""
    value = upper = 1.0
    lower = 0.0
    for term in range(1, _TERMS):
        half, odd = divmod(term, 2)
        step = -(a + half) * (a + b + half) if odd else half * (b - half)
        step *= x / ((a + term - 1) * (a + term))
        lower = 1 / (1 + step * lower or _LEAST)
        upper = 1 + step / upper or _LEAST
        value *= upper * lower
        if abs(upper * lower - 1) < 1e-12:
            break
    return value
