import sys
from types import SimpleNamespace

import pytest
from amdsmi_fake import PCI_ID, AmdSmi

from flytune.caches.amd_device import (
    BOARD,
    AmdDevice,
    board_of,
    pci_id,
    product_of,
)

PROPERTIES = SimpleNamespace(
    name="AMD Instinct MI355X", pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0
)
WHOLE = {
    "smi_product": "AMD Instinct MI355X",
    "smi_compute_units": 256,
    "compute_partition": "SPX",
    "memory_partition": "NPS1",
}


def install(monkeypatch: pytest.MonkeyPatch, smi: object) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", smi)


def test_a_pci_address_is_written_as_amdsmi_reads_it() -> None:
    assert pci_id(PROPERTIES) == PCI_ID
    far = SimpleNamespace(pci_domain_id=0x10, pci_bus_id=5, pci_device_id=0x1F)
    assert pci_id(far) == "0010:05:1f.0"


def test_the_board_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, AmdSmi())
    assert board_of(PROPERTIES) == WHOLE
    assert WHOLE.keys() == BOARD


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        ("asic_info", {"smi_product", "smi_compute_units"}),
        ("compute_partition", {"compute_partition"}),
        ("memory_partition", {"memory_partition"}),
    ],
)
def test_what_is_not_known_is_no_part(
    monkeypatch: pytest.MonkeyPatch, call: str, parts: set[str]
) -> None:
    for smi in (AmdSmi(broken=call), AmdSmi(unknown=call)):
        install(monkeypatch, smi)
        assert board_of(PROPERTIES).keys() == WHOLE.keys() - parts


def test_another_device_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, AmdSmi())
    assert AmdDevice.find("0000:c2:00.0") is None


def test_an_older_amdsmi_lacks_calls_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(AmdSmi):
        amdsmi_get_violation_status = None  # type: ignore[assignment]

        def amdsmi_get_clock_info(self, handle: str, kind: object) -> object:
            return {"cur_clk": 1900}

    install(monkeypatch, Older())
    device = AmdDevice.find(PCI_ID)
    assert device is not None
    assert (device.clock_mhz(), device.throttled()) == (1900.0, ())


def test_without_amdsmi_there_is_no_board(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    assert board_of(PROPERTIES) == {}


@pytest.mark.parametrize(
    "error", [ImportError, OSError, KeyError("libamd_smi.so"), AttributeError]
)
def test_an_amdsmi_that_cannot_be_loaded_is_absent(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load(name: str) -> None:
        raise error

    monkeypatch.setattr("importlib.import_module", load)
    assert AmdDevice.find(PCI_ID) is None


def test_a_device_without_a_name_has_amdsmis(monkeypatch: pytest.MonkeyPatch) -> None:
    nameless = SimpleNamespace(**{**vars(PROPERTIES), "name": ""})
    install(monkeypatch, AmdSmi())
    assert product_of(PROPERTIES) == product_of(nameless) == "AMD Instinct MI355X"
    install(monkeypatch, None)
    assert product_of(nameless) == ""
