"""Tail probabilities of Student's distribution, and Holm's correction of many."""

import math
from collections.abc import Sequence

FALSE_ALARMS = 0.0025
"""Share of comparisons of one thing with itself that may alarm, all tests together:
half of the one in 200 that a gate may have, as the spread is only estimated."""
TINY = 1e-9
"""The error of times without any spread, as a share."""


def upper_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's variable exceeds `t`.

    Args:
        freedom: Degrees of freedom, above 0; may be broken.
    """
    if not math.isfinite(t):
        return 0.0 if t > 0 else 1.0
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))


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
