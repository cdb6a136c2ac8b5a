"""What NVML says of a device while it works: clock, temperature, throttling."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Source: nvmlClocksEventReasons in nvml.h; idle and a user's own limit left out.
_REASONS: Mapping[int, str] = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading; None is what the driver does not tell."""

    clock_mhz: float | None = None
    """Of the multiprocessors."""
    celsius: int | None = None
    throttled: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [] if self.celsius is None else [f"{self.celsius} C"]
        if self.throttled:
            parts.append(f"throttled: {' and '.join(self.throttled)}")
        return ", ".join(parts)


class Telemetry:
    """Reads one device by its UUID; without NVML every reading is empty."""

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
