"""AMD's own account of a device, by amdsmi, which comes with ROCm and not with torch.

Without it nothing is told and nothing fails, as without NVML on an NVIDIA GPU.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Self

BOARD = frozenset(
    {
        *("smi_product", "smi_compute_units"),
        *("compute_partition", "memory_partition"),
    }
)
"""What `AmdDevice.board` may tell, parts of a target's hardware."""
# As amdsmi says that it does not know.
_UNKNOWN = (None, "", "N/A")
# Of `amdsmi_get_violation_status`, in amdsmi_interface.py of ROCm 7.0.
_VIOLATIONS: Mapping[str, str] = {
    "active_ppt_pwr": "power cap",
    "active_prochot_thrm": "thermal, by hardware",
    "active_socket_thrm": "thermal, of the socket",
    "active_vr_thrm": "thermal, of the regulators",
    "active_hbm_thrm": "thermal, of the memory",
}


class AmdDevice:
    """One device, asked anew at each call; None is what amdsmi does not tell."""

    def __init__(self, smi: Any, handle: Any) -> None:
        self._smi, self._handle = smi, handle

    @classmethod
    def find(cls, pci_id: str) -> Self | None:
        """Return the device at a PCI address; None without amdsmi, or a device there.

        Import torch before: its ROCm build finds the library where Python does not.

        Args:
            pci_id: Such as "0000:c1:00.0".
        """
        smi = _amdsmi()
        if smi is None:
            return None
        try:
            smi.amdsmi_init()
            return cls(smi, smi.amdsmi_get_processor_handle_from_bdf(pci_id))
        except smi.AmdSmiException:
            return None

    def board(self) -> dict[str, str | int]:
        """Return the parts of a target that torch does not tell, where they are known.

        `smi_product` and `smi_compute_units` are amdsmi's own; `compute_partition`,
        such as "SPX", and `memory_partition`, such as "NPS1", say how the GPU is cut.
        """
        asic = self._ask("amdsmi_get_gpu_asic_info") or {}
        told = {
            "smi_product": asic.get("market_name"),
            "smi_compute_units": asic.get("num_compute_units"),
            "compute_partition": self._ask("amdsmi_get_gpu_compute_partition"),
            "memory_partition": self._ask("amdsmi_get_gpu_memory_partition"),
        }
        return {name: value for name, value in told.items() if value not in _UNKNOWN}

    def clock_mhz(self) -> float | None:
        """Return the clock of the compute units."""
        kind = self._smi.AmdSmiClkType.GFX
        told = self._ask("amdsmi_get_clock_info", kind) or {}
        # ROCm before 6.2 has the other name.
        clock = told.get("clk", told.get("cur_clk"))
        return None if clock in _UNKNOWN else float(clock)

    def celsius(self) -> int | None:
        """Return the temperature of the hottest spot."""
        kind = self._smi.AmdSmiTemperatureType.JUNCTION
        metric = self._smi.AmdSmiTemperatureMetric.CURRENT
        told = self._ask("amdsmi_get_temp_metric", kind, metric)
        return None if told is None else int(told)

    def throttled(self) -> tuple[str, ...]:
        """Return in words what holds the clocks back; takes amdsmi a tenth of a second.

        Nothing, too, where the device or an older amdsmi cannot say.
        """
        told = self._ask("amdsmi_get_violation_status") or {}
        return tuple(w for name, w in _VIOLATIONS.items() if told.get(name) is True)

    def _ask(self, name: str, *args: Any) -> Any:
        """Return an answer; None where there is none."""
        ask = getattr(self._smi, name, None)
        if ask is None:
            return None
        try:
            told = ask(self._handle, *args)
        except self._smi.AmdSmiException:
            return None
        return None if told in _UNKNOWN else told


def _amdsmi() -> Any:
    try:
        return importlib.import_module("amdsmi")
    # It raises a KeyError of its own where it finds no library, and an AttributeError
    # where it finds that of another ROCm.
    except (ImportError, OSError, KeyError, AttributeError):
        return None


def pci_id(properties: Any) -> str:
    """Return the address of a device, such as "0000:c1:00.0".

    Args:
        properties: Of `torch.cuda.get_device_properties`. They hold no function, which
            is 0 but for partitions of an AMD GPU: those share the address.
    """
    domain, bus, device = (
        getattr(properties, f"pci_{part}_id") for part in ("domain", "bus", "device")
    )
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def product_of(properties: Any) -> str:
    """Return a device's name; where torch has none, as on some AMD hosts, amdsmi's."""
    return str(properties.name or board_of(properties).get("smi_product", ""))


def board_of(properties: Any) -> dict[str, str | int]:
    """Return what amdsmi tells of an AMD GPU; nothing where it is absent."""
    if not hasattr(properties, "pci_bus_id"):  # a stand-in is on no bus
        return {}
    device = AmdDevice.find(pci_id(properties))
    return {} if device is None else device.board()
