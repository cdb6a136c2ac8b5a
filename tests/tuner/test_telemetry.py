import sys
from typing import Any

import pytest
from amdsmi_fake import PCI_ID, AmdSmi

from flytune.tuner.telemetry import AmdTelemetry, NvidiaTelemetry, Reading


class NVMLError(Exception):
    """Named as NVML's own."""


class Nvml:
    """The part of pynvml that is used, for one device."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, reasons: int = 0, broken: str = "") -> None:
        self.opened = 0
        self._reasons, self._broken = reasons, broken

    def _answer(self, what: str, value: Any) -> Any:
        if what == self._broken:
            raise NVMLError(what)
        return value

    def nvmlInit(self) -> None:
        self.opened += 1
        self._answer("init", None)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        handle: str = self._answer("handle", f"handle of {uuid}")
        return handle

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        assert handle == "handle of GPU-1"
        reasons: int = self._answer("reasons", self._reasons)
        return reasons

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        assert (handle, kind) == ("handle of GPU-1", self.NVML_CLOCK_SM)
        clock: int = self._answer("clock", 1980)
        return clock

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:
        assert (handle, kind) == ("handle of GPU-1", self.NVML_TEMPERATURE_GPU)
        celsius: int = self._answer("temperature", 41)
        return celsius


def reading(monkeypatch: pytest.MonkeyPatch, nvml: object) -> Reading:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return NvidiaTelemetry("GPU-1").read()


@pytest.mark.parametrize(
    ("reasons", "words", "text"),
    [
        (0x0, (), "41 C"),
        # Idle, and clocks that a user has set, disturb nothing.
        (0x1 | 0x2, (), "41 C"),
        (0x4, ("power cap",), "41 C, throttled: power cap"),
        (
            0x1 | 0x8 | 0x40,
            ("hardware slowdown", "thermal, by hardware"),
            "41 C, throttled: hardware slowdown and thermal, by hardware",
        ),
    ],
)
def test_what_the_driver_tells(
    monkeypatch: pytest.MonkeyPatch, reasons: int, words: tuple[str, ...], text: str
) -> None:
    found = reading(monkeypatch, Nvml(reasons))
    assert found == Reading(1980.0, 41, words)
    assert str(found) == text


@pytest.mark.parametrize(
    "broken", ["init", "handle", "reasons", "clock", "temperature"]
)
def test_what_the_driver_does_not_tell_is_an_empty_reading(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    found = reading(monkeypatch, Nvml(broken=broken))
    assert found == Reading()
    assert str(found) == ""


def test_a_device_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    telemetry = NvidiaTelemetry("GPU-1")
    assert telemetry.read() == telemetry.read() == Reading(1980.0, 41)
    assert nvml.opened == 1


def test_without_pynvml_a_reading_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading(monkeypatch, None) == Reading()


def test_pynvml_has_what_is_asked_of_it() -> None:
    import pynvml

    names = [name for name in dir(Nvml) if name.lower().startswith("nvml")]
    assert [name for name in names if not hasattr(pynvml, name)] == []


def test_a_device_that_does_not_exist_has_empty_readings() -> None:
    # With the real library, or with the real lack of it.
    assert (
        NvidiaTelemetry("GPU-00000000-0000-0000-0000-000000000000").read() == Reading()
    )


def test_a_reading_of_little_says_little() -> None:
    assert str(Reading(clock_mhz=1980.0)) == ""
    assert str(Reading(throttled=("power brake",))) == "throttled: power brake"
    assert str(Reading(celsius=0)) == "0 C"
    assert str(Reading(celsius=61, partition="CPX/NPS4")) == "61 C, partition CPX/NPS4"


def amd_reading(monkeypatch: pytest.MonkeyPatch, smi: object) -> Reading:
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    return AmdTelemetry(PCI_ID).read()


def test_what_amdsmi_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    smi = AmdSmi(active=("active_ppt_pwr", "active_hbm_thrm"))
    found = amd_reading(monkeypatch, smi)
    words = ("power cap", "thermal, of the memory")
    assert found == Reading(2100.0, 61, words, "SPX/NPS1")
    assert str(found) == (
        "61 C, throttled: power cap and thermal, of the memory, partition SPX/NPS1"
    )


@pytest.mark.parametrize(
    ("broken", "want"),
    [
        ("init", Reading()),
        ("handle", Reading()),
        ("clock_info", Reading(None, 61, (), "SPX/NPS1")),
        ("temp_metric", Reading(2100.0, None, (), "SPX/NPS1")),
        ("violation_status", Reading(2100.0, 61, (), "SPX/NPS1")),
        ("compute_partition", Reading(2100.0, 61, (), "NPS1")),
        ("memory_partition", Reading(2100.0, 61, (), "SPX")),
    ],
)
def test_what_amdsmi_does_not_tell_is_left_out(
    monkeypatch: pytest.MonkeyPatch, broken: str, want: Reading
) -> None:
    assert amd_reading(monkeypatch, AmdSmi(broken=broken)) == want
    if broken not in ("init", "handle"):
        assert amd_reading(monkeypatch, AmdSmi(unknown=broken)) == want


def test_without_amdsmi_a_reading_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    assert amd_reading(monkeypatch, None) == Reading()
    assert str(amd_reading(monkeypatch, None)) == ""
