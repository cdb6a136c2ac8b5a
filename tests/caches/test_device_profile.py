import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builds import run_python

from flytune.caches import device_profile
from flytune.caches.device_profile import (
    DeviceProfile,
    find_profile,
    live_profile,
    shipped_profiles,
)
from flytune.caches.stand_in import stand_in_environment
from flytune.caches.target import PartStatus, Target, compare
from flytune.shapes.errors import FlytuneError

# Capturing asks torch alone, so a stand-in can be captured as a device is.
CAPTURE = """
import json, sys
from flytune.caches.device_profile import capture, find_profile
from flytune.caches.stand_in import stand_in
stand_in(find_profile(sys.argv[1]))
print(json.dumps(capture().to_json()))
"""


@pytest.fixture
def fresh() -> Iterator[None]:
    """Let this process ask for its device anew, then and afterwards."""
    live_profile.cache_clear()
    yield
    live_profile.cache_clear()


def row_of(name: str = "h200") -> dict[str, Any]:
    row: dict[str, Any] = json.loads(shipped_profiles()[name].read_text())
    return row


def written(folder: Path, row: object) -> str:
    path = folder / "profile.json"
    path.write_text(json.dumps(row))
    return str(path)


@pytest.mark.parametrize("name", shipped_profiles())
def test_a_shipped_profile_is_found_by_its_name_and_by_its_file(name: str) -> None:
    profile = find_profile(name)
    assert profile == find_profile(name.upper())
    assert profile == find_profile(str(shipped_profiles()[name]))
    assert DeviceProfile.from_json(profile.to_json()) == profile
    captured = {"python_abi", "torch", "torch_key", "triton", "triton_key"}
    hip = {"hip", "rocm"} if profile.vendor == "amd" else set()
    written = profile.origin == "written"
    assert set(profile.captured_with) == hip | (set() if written else captured)


@pytest.mark.parametrize(("name", "mhz"), [("mi355x", 2400), ("mi350x", 2200)])
def test_parts_of_amds(name: str, mhz: int) -> None:
    profile = find_profile(name)
    assert (profile.vendor, profile.origin) == ("amd", "written")
    assert profile.properties["clock_rate"] == 1000 * mhz
    features = str(profile.properties["gcnArchName"])
    assert features.partition(":")[0] == profile.arch == "gfx950"
    target = Target.here(threads=1, hardware=profile.hardware())
    assert target.slug == f"cuda-amd-instinct-{name}-gfx950"


def test_another_architecture_is_another_device() -> None:
    profile = find_profile("mi355x")
    assert profile.is_same(replace(profile, origin="device"))
    assert not profile.is_same(replace(profile, arch="gfx942"))
    assert not profile.is_same(find_profile("mi350x"))


def test_what_amdsmi_told_is_in_the_target(tmp_path: Path) -> None:
    board = {
        "smi_product": "AMD Instinct MI355X OAM",
        "smi_compute_units": 256,
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
    }
    told = find_profile(written(tmp_path, {**row_of("mi355x"), "board": board}))
    assert DeviceProfile.from_json(told.to_json()) == told
    assert board.items() <= told.hardware().items()
    untold = find_profile("mi355x")
    assert untold.is_same(told)
    assert untold.hardware().keys().isdisjoint(board)
    cut = replace(told, board={**board, "memory_partition": "NPS2"})
    found = {
        other.vendor + str(other.board.get("memory_partition")): {
            p.part: p.status
            for p in compare(Target(told.hardware(), {}), Target(other.hardware(), {}))
            if p.status is not PartStatus.HIT
        }
        for other in (cut, untold)
    }
    # No key holds any of it, and what is not known here cannot be compared.
    assert found == {
        "amdNPS2": {"hardware.memory_partition": PartStatus.WARNING},
        "amdNone": {f"hardware.{name}": PartStatus.UNKNOWN for name in board},
    }


def test_a_profile_that_says_nothing_was_captured() -> None:
    assert "origin" not in row_of()
    assert find_profile("h200").origin == "device"


def test_parts_of_the_h200() -> None:
    profile = find_profile("h200")
    assert profile.capability == (9, 0)
    target = Target.here(threads=1, hardware=profile.hardware())
    assert target.slug == "cuda-nvidia-h200-sm_90"
    assert target.hardware["compute_units"] == 132


def test_what_differs_between_devices_decides() -> None:
    profile = find_profile("h200")
    smaller = {**row_of(), "properties": {**row_of()["properties"]}}
    smaller["properties"] |= {"name": "NVIDIA H100", "multi_processor_count": 114}
    built = Target(profile.hardware(), {})
    live = Target(DeviceProfile.from_json(smaller).hardware(), {})
    differs = {p.part: p.status for p in compare(built, live) if p.built != p.live}
    assert differs == {
        "hardware.product": PartStatus.WARNING,
        "hardware.compute_units": PartStatus.MISS,
    }


def test_an_unknown_target_names_the_known_ones(tmp_path: Path) -> None:
    for target in ("h2000", "", str(tmp_path)):
        with pytest.raises(FlytuneError) as caught:
            find_profile(target)
        assert str(caught.value) == f"no such target: `{target}`"
        assert str(caught.value.hint).startswith(
            f"known are {', '.join(shipped_profiles())}"
        )


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(text)
    with pytest.raises(FlytuneError) as caught:
        find_profile(str(path))
    assert str(caught.value) == f"device profile is not JSON: {path}"


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {},
        {**row_of(), "more": 1},
        {name: value for name, value in row_of().items() if name != "captured_with"},
        {**row_of(), "kind": "xpu"},
        {**row_of(), "vendor": None},
        {**row_of(), "properties": []},
        {**row_of(), "properties": {}},
        {**row_of(), "captured_with": ["torch"]},
        {**row_of(), "captured_with": {"torch": 2.11}},
        {**row_of(), "max_shared_bytes": "many"},
        {**row_of(), "max_shared_bytes": 0},
        {**row_of(), "origin": "heard"},
        {**row_of("mi355x"), "captured_with": {"rocm": "7.2.0"}},
        {**row_of("mi355x"), "board": ["SPX"]},
        {**row_of("mi355x"), "board": {"color": "red"}},
        {**row_of("mi355x"), "board": {"compute_partition": ""}},
        {**row_of("mi355x"), "board": {"smi_compute_units": 0}},
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, row: object) -> None:
    with pytest.raises(FlytuneError, match=r"^device profile is malformed: "):
        find_profile(written(tmp_path, row))


@pytest.mark.parametrize(
    "name", ["name", "major", "warp_size", "multi_processor_count", "total_memory"]
)
@pytest.mark.parametrize("value", [None, "", float("inf"), {}, "absent"])
def test_a_property_that_is_needed(tmp_path: Path, name: str, value: object) -> None:
    row = row_of()
    row["properties"][name] = value
    if value == "absent":
        del row["properties"][name]
    with pytest.raises(FlytuneError, match=r"^device profile is malformed: ") as caught:
        find_profile(written(tmp_path, row))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", shipped_profiles())
def test_a_capture_is_the_profile(name: str) -> None:
    stood_in = find_profile(name)
    row = json.loads(run_python(CAPTURE, name, env=stand_in_environment(stood_in)))
    found = DeviceProfile.from_json(row)
    software = found.captured_with
    captured = {"python_abi", "torch", "torch_key", "triton", "triton_key"}
    assert set(software) == captured | set(stood_in.captured_with)
    assert software["torch"] == Target.here(threads=1).software["torch"]
    for version in {"hip", "rocm"} & set(software):
        assert software[version] == stood_in.captured_with[version]
    same = {"captured_with": stood_in.captured_with, "origin": stood_in.origin}
    assert found.origin == "device"
    assert replace(found, **same) == stood_in


@pytest.mark.usefixtures("fresh")
def test_a_host_without_a_driver_is_asked_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(device_profile, "_DEVICE_FILES", ("/none",))
    monkeypatch.setattr(device_profile, "run_module", asked)
    assert live_profile() is None
    assert Target.live("cuda", threads=1).hardware == {"kind": "absent"}


@pytest.mark.usefixtures("fresh")
def test_a_driver_that_torch_cannot_use_is_no_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_profile, "_DEVICE_FILES", ("/dev/null",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert live_profile() is None
