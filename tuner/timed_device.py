"""The device that a plan's candidates are timed on, as its runner must know it."""

import platform

from flytune.tuner.plan import Plan, free_bytes
from flytune.tuner.runner import Device
from flytune.tuner.vendors import VENDORS

_DEFAULT_CACHE_BYTES = 64 * 2**20


def device_of(plan: Plan) -> Device:
    """Return the target's device as the runner must know it."""
    hardware = plan.target.hardware
    if plan.profile is not None:
        memory = int(plan.profile.properties["total_memory"])
        vendor = VENDORS[plan.profile.vendor]
        return Device(
            name=plan.profile.product,
            cache_bytes=vendor.cache_bytes(plan.profile),
            rotation_bytes=memory // 4,
            kind=plan.profile.kind,
            vendor=vendor.name,
        )
    cpu_cache = hardware.get("l3_bytes") or hardware.get("l2_bytes")
    return Device(
        name=str(hardware.get("product") or platform.machine()),
        cache_bytes=cpu_cache if isinstance(cpu_cache, int) else _DEFAULT_CACHE_BYTES,
        # The operands, and packing them, take memory too.
        rotation_bytes=free_bytes() // 2,
    )
