"""The device that candidates are timed on, as its runner must know it."""

import platform
from collections.abc import Mapping

from flytune.caches.device_profile import DeviceProfile
from flytune.caches.host import Part
from flytune.tuner.plan import Plan, free_bytes
from flytune.tuner.runner import Device
from flytune.tuner.vendors import VENDORS

_DEFAULT_CACHE_BYTES = 64 * 2**20


def device_of(plan: Plan) -> Device:
    """Return the device of a plan's target."""
    return timed_device(plan.target.hardware, plan.profile)


def timed_device(hardware: Mapping[str, Part], profile: DeviceProfile | None) -> Device:
    """Return a device of this host.

    Args:
        hardware: A target's parts of it.
        profile: Of an accelerator; None for the CPU.
    """
    if profile is not None:
        memory = int(profile.properties["total_memory"])
        vendor = VENDORS[profile.vendor]
        return Device(
            name=profile.product,
            cache_bytes=vendor.cache_bytes(profile),
            rotation_bytes=memory // 4,
            kind=profile.kind,
            vendor=vendor.name,
        )
    cpu_cache = hardware.get("l3_bytes") or hardware.get("l2_bytes")
    return Device(
        name=str(hardware.get("product") or platform.machine()),
        cache_bytes=cpu_cache if isinstance(cpu_cache, int) else _DEFAULT_CACHE_BYTES,
        # The operands, and packing them, take memory too.
        rotation_bytes=free_bytes() // 2,
    )
