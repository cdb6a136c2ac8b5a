"""The part of amdsmi that is used, for one device that is not here.

Answers have the forms of amdsmi 7.0.2: "N/A" is what it does not know, and each of its
errors is an `AmdSmiException`.
"""

from enum import IntEnum
from typing import Any

PCI_ID = "0000:c1:00.0"


class AmdSmiException(Exception):
    """Named as amdsmi's own."""


class AmdSmiClkType(IntEnum):
    GFX = 1


class AmdSmiTemperatureType(IntEnum):
    JUNCTION = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class AmdSmi:
    """Stands for the module."""

    AmdSmiException = AmdSmiException
    AmdSmiClkType = AmdSmiClkType
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric

    def __init__(
        self, *, broken: str = "", unknown: str = "", active: tuple[str, ...] = ()
    ) -> None:
        """Tell everything, but what is broken raises and what is unknown is "N/A".

        Args:
            broken: A call, by the end of its name.
            unknown: The same.
            active: Violations that last.
        """
        self._broken, self._unknown, self._active = broken, unknown, active

    def _answer(self, what: str, told: Any) -> Any:
        if what == self._broken:
            raise AmdSmiException(what)
        if what == self._unknown:
            return dict.fromkeys(told, "N/A") if isinstance(told, dict) else "N/A"
        return told

    def amdsmi_init(self) -> None:
        self._answer("init", None)

    def amdsmi_get_processor_handle_from_bdf(self, bdf: str) -> str:
        if bdf != PCI_ID:
            raise AmdSmiException(bdf)
        handle: str = self._answer("handle", f"handle of {bdf}")
        return handle

    def amdsmi_get_clock_info(self, handle: str, kind: AmdSmiClkType) -> Any:
        assert (handle, kind) == (f"handle of {PCI_ID}", AmdSmiClkType.GFX)
        return self._answer("clock_info", {"clk": 2100, "max_clk": 2400})

    def amdsmi_get_temp_metric(
        self, handle: str, kind: AmdSmiTemperatureType, metric: AmdSmiTemperatureMetric
    ) -> Any:
        assert handle == f"handle of {PCI_ID}"
        assert (kind.name, metric.name) == ("JUNCTION", "CURRENT")
        return self._answer("temp_metric", 61)

    def amdsmi_get_violation_status(self, handle: str) -> Any:
        assert handle == f"handle of {PCI_ID}"
        names = ("prochot_thrm", "ppt_pwr", "socket_thrm", "vr_thrm", "hbm_thrm")
        told = {f"active_{name}": f"active_{name}" in self._active for name in names}
        return self._answer("violation_status", told)

    def amdsmi_get_gpu_asic_info(self, handle: str) -> Any:
        assert handle == f"handle of {PCI_ID}"
        told = {"market_name": "AMD Instinct MI355X", "num_compute_units": 256}
        return self._answer("asic_info", told)

    def amdsmi_get_gpu_compute_partition(self, handle: str) -> Any:
        assert handle == f"handle of {PCI_ID}"
        return self._answer("compute_partition", "SPX")

    def amdsmi_get_gpu_memory_partition(self, handle: str) -> Any:
        assert handle == f"handle of {PCI_ID}"
        return self._answer("memory_partition", "NPS1")
