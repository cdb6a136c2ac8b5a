"""What the model of cost sees of a candidate: numbers, most as powers of two."""

import math
from collections.abc import Sequence

from flytune.caches.lists import TunedList
from flytune.caches.records import TuningRecord
from flytune.caches.report.work import moved_bytes, operations
from flytune.tuner.smart.geometry import Geometry, geometry_of
from flytune.tuner.smart.limits import Limits, stage_bytes

# A scale, so that GEMMs of unlike sizes are comparable, and no claim: the order of what
# a unit of a recent accelerator computes and reads in a microsecond.
_UNIT_OPERATIONS_US = 6e6
_UNIT_BYTES_US = 3e4
_MOST_PROGRAMS = 32
"""That one unit holds, whatever they take."""


def scale_us(one: TuningRecord, limits: Limits) -> float:
    """Return about how long a GEMM takes at best, in microseconds."""
    shape = TunedList((one,)).shape
    computing = operations(shape) / (_UNIT_OPERATIONS_US * limits.units)
    reading = (moved_bytes(shape) or 0.0) / (_UNIT_BYTES_US * limits.units)
    return max(computing, reading, 1e-3)


def features(one: TuningRecord, limits: Limits) -> list[float]:
    """Return a candidate's features; NaN for what its parameters do not tell."""
    products = one.batch * max(one.groups, 1)
    sizes = [*map(math.log2, (one.m, one.n, one.k, products))]
    found = geometry_of(one.backend, one.config)
    own = [math.nan] * _OF_KERNEL if found is None else _of_kernel(one, found, limits)
    return [float(one.bias), *sizes, *own]


_OF_KERNEL = 21


def _of_kernel(one: TuningRecord, kernel: Geometry, limits: Limits) -> list[float]:
    rows, columns = _cut(one.m, kernel.block_m), _cut(one.n, kernel.block_n)
    programs = rows * columns * one.batch * max(one.groups, 1)
    shared = kernel.stages * stage_bytes(one, kernel)
    at_once = _programs_of_unit(shared, kernel, limits)
    waves = programs / (limits.units * at_once)
    of_unit = programs / limits.units
    padded = rows * kernel.block_m * columns * kernel.block_n / (one.m * one.n)
    read = programs * (kernel.block_m + kernel.block_n) * one.k
    held = kernel.block_m * kernel.block_n / (kernel.warps * limits.warp)
    in_flight = max(1.0, min(of_unit, at_once)) * shared
    powers: Sequence[float] = (
        *(kernel.block_m, kernel.block_n, kernel.block_k, kernel.warps),
        *(programs, shared, waves, held, padded, read, shared * at_once, in_flight),
    )
    return [
        *map(math.log2, powers),
        *(kernel.stages, kernel.group_m, at_once, *kernel.variant),
        # How full the last wave is: of programs at once, and of units.
        *(waves / math.ceil(waves), of_unit / math.ceil(of_unit)),
        float(_cut(one.k, kernel.block_k)),
    ]


def _cut(size: int, block: int) -> int:
    return -(-size // block)


def _programs_of_unit(shared: float, kernel: Geometry, limits: Limits) -> int:
    by_memory = int(limits.unit_shared_bytes // max(shared, 1))
    by_threads = limits.unit_threads // (kernel.warps * limits.warp)
    return max(1, min(by_memory, by_threads, _MOST_PROGRAMS))
