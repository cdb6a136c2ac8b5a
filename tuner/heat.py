"""Which lists cost a forward pass most: what of its time tuning could win at best.

A list's heat is its calls in a forward pass times what a call takes beyond the device's
roofline. Where nothing was timed a call is expected to take as many times its roofline
as those that were.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flytune.caches.columns import Status
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.lists import TunedList
from flytune.caches.records import TuningRecord
from flytune.caches.report.work import moved_bytes, operations, type_of
from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import ATEN, TuneTask
from flytune.tuner.smart.features import scale_us
from flytune.tuner.smart.limits import Limits

Least = Callable[[GemmShape], float]
"""Returns the microseconds that a device takes for a GEMM at least, about."""

# A core's and all cores' together, where nothing was measured: the order of what recent
# ones reach.
_CORE_OPERATIONS_US = 2e5
_BYTES_US = 1.5e4
_FACTOR = 1.5
"""Of the roofline, that a library's call takes where no time is known."""
_LEAST_US = 0.1
_FLOOR_US = 2.0
"""Of a launch, or of a call into the library."""


def least_by_ceilings(ceilings: Mapping[str, Any], otherwise: Least) -> Least:
    """Return the roofline of a device that was measured.

    Args:
        ceilings: As `measure_ceilings`.
        otherwise: For types that were not measured, or without any ceilings.
    """
    copy, rates = ceilings.get("copy_gb_s"), ceilings.get("gemm_tflops") or {}

    def least_us(shape: GemmShape) -> float:
        rate, moved = rates.get(type_of(shape)), moved_bytes(shape)
        if not copy or not rate or moved is None:
            return otherwise(shape)
        computing, reading = operations(shape) / rate / 1e6, moved / copy / 1e3
        return float(max(computing, reading))

    return least_us


def least_by_profile(profile: DeviceProfile | None, threads: int) -> Least:
    """Return about the roofline of a device that nobody has measured.

    Args:
        profile: Of an accelerator; None for a CPU.
        threads: Of a CPU.
    """
    if profile is None:

        def least_us(shape: GemmShape) -> float:
            computing = operations(shape) / (_CORE_OPERATIONS_US * threads)
            return max(computing, (moved_bytes(shape) or 0.0) / _BYTES_US)

        return least_us
    limits = Limits.of(profile)
    return lambda shape: scale_us(TuningRecord.of_shape(shape, **_BLANK), limits)


_BLANK: Mapping[str, Any] = {
    **{"backend": ATEN, "template": None, "config": "{}", "choice_hash": ""},
    "status": Status.OK,
}


class Heat:
    """How hot the lists of a build are, by what is known of the device."""

    def __init__(self, least: Least, timed: Iterable[TuningRecord] = ()) -> None:
        """Learn.

        Args:
            least: The device's roofline.
            timed: What other builds, or this one before, have timed on it.
        """
        by_problem: dict[object, list[float]] = {}
        factors = []
        for record in timed:
            if record.backend == ATEN and record.median_us is not None:
                shape = TunedList((record,)).shape
                by_problem.setdefault(_problem(shape), []).append(record.median_us)
                factors.append(record.median_us / max(least(shape), _LEAST_US))
        self._us = {key: statistics.median(some) for key, some in by_problem.items()}
        self._factor = statistics.median(factors) if factors else _FACTOR
        # What took less than its roofline shows that the device's is lower.
        scale = min(1.0, *factors) if factors else 1.0
        self._least: Least = lambda shape: scale * least(shape)
        self._factor /= scale

    def us(self, shape: GemmShape) -> float:
        """Return what a call is expected to take before it is tuned."""
        known = self._us.get(_problem(shape))
        return known or max(_FLOOR_US, self._factor * self._least(shape))

    def pass_us(self, task: TuneTask, us: float | None = None) -> float:
        """Return what a list takes in a forward pass.

        Args:
            us: What a call takes, where it is known.
        """
        return max(1, task.shape.count) * (us or self.us(task.shape))

    def of(self, task: TuneTask, us: float | None = None) -> float:
        """Return the microseconds of a forward pass that tuning a list could win.

        Args:
            us: What a call takes by now, where it is known.
        """
        now = us or self.us(task.shape)
        return max(1, task.shape.count) * max(0.0, now - self._least(task.shape))

    def ordered(self, tasks: Iterable[TuneTask]) -> list[TuneTask]:
        """Return lists, the hottest first; of equal ones in their order."""
        return sorted(tasks, key=lambda task: (-self.of(task), -self.pass_us(task)))


def _problem(shape: GemmShape) -> tuple[object, ...]:
    return (*shape.problem, shape.a_dtype, shape.b_dtype, shape.layout, shape.scaling)
