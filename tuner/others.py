"""How much of this process's cores others take, by the kernel's own accounts."""

import os
import time

# The accounts are kept in hundredths of a second.
_TICK_S = 0.02


class Others:
    """Counts from its making on: other processes, interrupts and other guests."""

    def __init__(self) -> None:
        self._wall, self._busy, self._own = time.monotonic(), _busy_s(), _own_s()

    def cores(self) -> float:
        """Return the cores that others took on average, at least 0."""
        wall = time.monotonic() - self._wall
        others = (_busy_s() - self._busy) - (_own_s() - self._own)
        return max(0.0, others - _TICK_S) / max(wall, _TICK_S)


def _busy_s() -> float:
    """Return the seconds that this process's cores have been busy since the boot."""
    import psutil

    own = os.sched_getaffinity(0)
    times = psutil.cpu_times(percpu=True)
    busy: float = sum(
        sum(core) - core.idle - core.iowait - core.guest - core.guest_nice
        for number, core in enumerate(times)
        if number in own
    )
    return busy


def _own_s() -> float:
    times = os.times()
    return times.user + times.system
