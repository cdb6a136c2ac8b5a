"""What tells AMD's accelerators from NVIDIA's where torch, to which both are "cuda",
does not: masks, the library that manages them, and the caches behind L2."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flytune.caches.device_profile import DeviceProfile
from flytune.shapes.errors import FlytuneError
from flytune.tuner.masks import CUDA, HIP, ROCR, in_words
from flytune.tuner.telemetry import AmdTelemetry, NvidiaTelemetry, Telemetry


class DeviceId(NamedTuple):
    """Which device of all."""

    uuid: str
    """torch's, such as "GPU-" and 36 characters."""
    pci_id: str
    """Such as "0000:c1:00.0"."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """One vendor, as the runner must know it."""

    name: str
    """As profiles have it."""
    mask: str
    """The variable by which Ray shows an actor its device."""
    other_masks: tuple[str, ...]
    """What its runtime obeys besides: with one of them `mask` means another device."""
    graph: str
    """What its runtime calls a replayed list of launches."""
    memory_side_cache_bytes: int
    """Of a cache between L2 and memory, which torch does not tell; 0: none."""
    lock_name: Callable[[DeviceId], str]
    """What two processes that time on the same silicon have in common."""
    telemetry: Callable[[DeviceId], Telemetry]

    def cache_bytes(self, profile: DeviceProfile) -> int:
        """Return the size of the last-level cache, which rotated weights must beat."""
        l2_bytes = int(profile.properties["L2_cache_size"])
        return max(l2_bytes, self.memory_side_cache_bytes)

    def refuse_other_masks(self, environ: Mapping[str, str]) -> None:
        """Refuse what would hide devices besides the mask.

        Raises:
            FlytuneError: another mask that the vendor's runtime obeys is set.
        """
        others = {n: environ[n] for n in self.other_masks if n in environ}
        if others:
            raise FlytuneError(
                f"devices are hidden by more than {self.mask}: {in_words(others)}",
                hint=f"name them by {self.mask}, and unset {' and '.join(others)}",
            )

    def require_mask(self, environ: Mapping[str, str]) -> None:
        """Refuse a process that is not shown its device by the mask alone.

        Raises:
            FlytuneError: the mask is not set, names no device or several, or is not
                the only one.
        """
        self.refuse_other_masks(environ)
        value = environ.get(self.mask)
        if value is None or not value or "," in value:
            said = "unset" if value is None else f"`{value}`"
            raise FlytuneError(f"{self.mask} must name one device: {said}")


NVIDIA = Vendor(
    name="nvidia",
    mask=CUDA,
    other_masks=(),
    graph="CUDA graph",
    memory_side_cache_bytes=0,
    # Instances of a MIG share a PCI address, and are apart in all else.
    lock_name=lambda device: device.uuid,
    telemetry=lambda device: NvidiaTelemetry(device.uuid),
)
AMD = Vendor(
    name="amd",
    mask=HIP,
    other_masks=(CUDA, ROCR),
    graph="HIP graph",
    # "L3 Cache (MiB)" of every MI300 and MI350:
    # https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html
    memory_side_cache_bytes=256 * 2**20,
    # Partitions of one GPU share that address, its power and its memory; timed at
    # once they would disturb each other.
    lock_name=lambda device: device.pci_id,
    telemetry=lambda device: AmdTelemetry(device.pci_id),
)
VENDORS: Mapping[str, Vendor] = {vendor.name: vendor for vendor in (NVIDIA, AMD)}
