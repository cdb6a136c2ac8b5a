"""Whether other processes leave a host the cores that timing needs."""

import os
import time
from collections.abc import Sequence

# Cores that may be missing before a warning: an idle host's own work takes as much.
_SPARE_CORES = 0.5
_WATCH_S = 0.5
_PATIENCE_S = 15.0


def crowded(busy: Sequence[float], threads: int) -> str:
    """Return a warning when others leave too few cores free for `threads`, or nothing.

    An OpenMP kernel ends with its slowest thread: one core taken makes times hundreds
    of times too long, and of what they are made the choice is.

    Args:
        busy: The share of each core that others use, 0 to 1.
    """
    taken = sum(busy)
    if len(busy) - taken >= threads - _SPARE_CORES:
        return ""
    return (
        f"time: warning: other processes use {taken:.1f} of {len(busy)} cores, and "
        f"{threads} threads are timed: wait until they end, or times mean little"
    )


def until_quiet(threads: int) -> str:
    """Wait for the cores that timing needs; return a warning if others keep them.

    What Ray and the builders still do when the last build has ended passes by itself.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while warning := crowded(_busy_cores(), threads):
        if time.monotonic() > deadline:
            return warning
    return ""


def _busy_cores() -> tuple[float, ...]:
    """Return the share of each of this process's cores that is in use just now."""
    import psutil

    shares = psutil.cpu_percent(interval=_WATCH_S, percpu=True)
    own = os.sched_getaffinity(0)
    return tuple(share / 100 for core, share in enumerate(shares) if core in own)
