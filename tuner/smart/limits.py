"""What a kernel may take of an accelerator, and what it takes at least.

A candidate that takes more is known before it is compiled.
"""

from dataclasses import dataclass
from typing import Self

from flytune.caches.device_profile import DeviceProfile
from flytune.caches.records import TuningRecord
from flytune.caches.report.work import BITS
from flytune.tuner.candidate import TRITON
from flytune.tuner.smart.geometry import Geometry

SHARED_MEMORY = "shared memory"
REGISTERS = "registers"
"""Why a candidate is left out before it is compiled: values of `pruned_by`."""
_REGISTERS_EACH_THREAD = 255
# Where accumulators are in registers; later ones have a memory for them.
_REGISTER_ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90")
# Multiplies from shared memory, by four warps that share 64 rows.
_WARP_GROUP_ARCHS = ("sm_90",)
_WARP_GROUP = 4
_WARP_GROUP_ROWS = 64
_WARP_GROUP_BITS = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """One kind of accelerator, as far as it bounds a kernel; sizes in bytes."""

    vendor: str
    arch: str
    units: int
    """Streaming multiprocessors, or compute units."""
    shared_bytes: int
    """Shared memory of one program."""
    unit_shared_bytes: int
    """Shared memory of one unit."""
    unit_threads: int
    warp: int
    """Threads of a warp, or a wave."""

    @classmethod
    def of(cls, profile: DeviceProfile) -> Self:
        """Return the limits of a profile's device."""
        given = profile.properties
        return cls(
            vendor=profile.vendor,
            arch=profile.arch,
            units=int(given["multi_processor_count"]),
            shared_bytes=profile.max_shared_bytes,
            unit_shared_bytes=int(given["shared_memory_per_multiprocessor"]),
            unit_threads=int(given["max_threads_per_multi_processor"]),
            warp=int(given["warp_size"]),
        )


def stage_bytes(one: TuningRecord, geometry: Geometry) -> float:
    """Return the shared memory of one stage: a tile of each operand, in bytes."""
    a = geometry.block_m * geometry.block_k * BITS.get(one.a_dtype, 16) / 8
    b = geometry.block_k * geometry.block_n * BITS.get(one.b_dtype, 16) / 8
    return a + b


def least_shared_bytes(one: TuningRecord, geometry: Geometry, limits: Limits) -> float:
    """Return what Triton's pipeline of a GEMM takes of shared memory at least.

    Operands of the last of the stages are in registers already, but where warps
    multiply from shared memory; that is counted for types of 16 bits alone, for with
    others layout and precision decide. Of 9,800 candidates in bfloat16 on an H200,
    Triton 3.6, 865 failed for want of shared memory: this told each, and no other.
    """
    in_groups = (
        limits.arch in _WARP_GROUP_ARCHS
        and BITS.get(one.a_dtype) == _WARP_GROUP_BITS
        and geometry.warps % _WARP_GROUP == 0
        and geometry.block_m >= _WARP_GROUP_ROWS
    )
    buffers = geometry.stages if in_groups else geometry.stages - 1
    return buffers * stage_bytes(one, geometry)


def excess(
    one: TuningRecord, geometry: Geometry | None, limits: Limits
) -> tuple[str, str]:
    """Return what a candidate takes too much of, and in words how much; "" if nothing.

    FlyDSL asks for what it needs itself before it offers a candidate.
    """
    if geometry is None or one.backend != TRITON:
        return "", ""
    needed = least_shared_bytes(one, geometry, limits)
    if needed > limits.shared_bytes:
        words = f"{SHARED_MEMORY}: {needed:.0f} of {limits.shared_bytes} bytes"
        return SHARED_MEMORY, words
    threads = geometry.warps * limits.warp
    # One in float32 for each of its results.
    each = geometry.block_m * geometry.block_n / threads
    if limits.arch in _REGISTER_ARCHS and each > _REGISTERS_EACH_THREAD:
        words = f"{REGISTERS}: {each:.0f} of {_REGISTERS_EACH_THREAD} a thread"
        return REGISTERS, words
    return "", ""
