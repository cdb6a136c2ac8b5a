"""What a vendor's library says of a device while it works: clock, heat, throttling."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flytune.caches.amd_device import AmdDevice

# Source: nvmlClocksEventReasons in nvml.h; idle and a user's own limit left out.
_REASONS: Mapping[int, str] = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}
# Of the last second; what a desktop takes is less.
_BUSY_PERCENT = 10


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading; None is what the driver does not tell."""

    clock_mhz: float | None = None
    """Of the multiprocessors, or compute units."""
    celsius: int | None = None
    throttled: tuple[str, ...] = ()
    partition: str = ""
    """How an AMD GPU is cut, such as "SPX/NPS1"."""

    def __str__(self) -> str:
        parts = [] if self.celsius is None else [f"{self.celsius} C"]
        if self.throttled:
            parts.append(f"throttled: {' and '.join(self.throttled)}")
        if self.partition:
            parts.append(f"partition {self.partition}")
        return ", ".join(parts)


class Telemetry(Protocol):
    """Reads one device; without its vendor's library every reading is empty."""

    def read(self) -> Reading:
        """Return what the device does just now; never raises."""


class NvidiaTelemetry:
    """Reads an NVIDIA GPU by NVML."""

    def __init__(self, uuid: str) -> None:
        self._nvml, self._handle = _open(uuid)

    def read(self) -> Reading:
        """Return what the device does just now."""
        if self._nvml is None:
            return Reading()
        nvml, handle = self._nvml, self._handle
        try:
            bits = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
            return Reading(
                float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                tuple(words for bit, words in _REASONS.items() if bits & bit),
            )
        except nvml.NVMLError:
            return Reading()


def users() -> tuple[str, ...]:
    """Say which NVIDIA GPUs of this host others use, a line each; never raises."""
    try:
        import pynvml as nvml
    except ImportError:
        return ()
    lines = []
    try:
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            busy = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            if running or busy >= _BUSY_PERCENT:
                pids = ", ".join(str(process.pid) for process in running) or "unknown"
                lines.append(
                    f"GPU {index} is used, {busy} % of the time, by processes: {pids}"
                )
    except nvml.NVMLError:
        pass
    return tuple(lines)


def _open(uuid: str) -> tuple[Any, Any]:
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        return None, None


class AmdTelemetry:
    """Reads an AMD GPU by amdsmi, which knows it by its PCI address."""

    def __init__(self, pci_id: str) -> None:
        self._device = AmdDevice.find(pci_id)
        board = {} if self._device is None else self._device.board()
        cuts = [board.get(f"{what}_partition") for what in ("compute", "memory")]
        self._partition = "/".join(str(cut) for cut in cuts if cut)

    def read(self) -> Reading:
        """Return what the device does just now."""
        if self._device is None:
            return Reading()
        return Reading(
            self._device.clock_mhz(),
            self._device.celsius(),
            self._device.throttled(),
            self._partition,
        )
