"""Each reason why tuning or serving would go wrong on a host, found."""

import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flytune.caches import device_profile
from flytune.caches.device_profile import find_profile
from flytune.caches.mounts import Mount, mount_of
from flytune.shapes.errors import FlytuneError
from flytune.tuner import findings as module
from flytune.tuner.findings import (
    Finding,
    device_findings,
    environment,
    host_findings,
)

MOUNTS = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
TABLE = r"""
22 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw
28 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
31 28 0:26 / /data rw - nfs4 server:/data rw
32 31 0:27 / /data/local\040disk rw - xfs /dev/sdb rw
33 28 0:28 / /home rw - fuse.sshfs me@host:/home rw
34 28 0:29 / /over rw - fuse.fuse-overlayfs fuse-overlayfs rw
35 28 0:30 / /twice rw - ext4 /dev/sdc rw
36 35 0:31 / /twice rw - lustre server@tcp:/scratch rw
torn
"""


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "_LEAST_FREE_BYTES", 0)
    monkeypatch.setattr(module, "_LEAST_SHARED_BYTES", 0)


def codes(found: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.code) for finding in found]


@pytest.mark.parametrize(
    ("place", "kind", "network"),
    [
        ("/etc", "ext4", False),
        ("/data/x/y", "nfs4", True),
        ("/data/local disk/x", "xfs", False),
        ("/database", "ext4", False),
        ("/home/me", "fuse.sshfs", True),
        ("/over/x", "fuse.fuse-overlayfs", False),
        ("/twice/x", "lustre", True),
    ],
)
def test_the_mount_of_a_directory(
    tmp_path: Path, place: str, kind: str, network: bool
) -> None:
    (tmp_path / "mountinfo").write_text(TABLE)
    mount = mount_of(Path(place), tmp_path / "mountinfo")
    assert mount is not None
    assert (mount.kind, mount.is_network) == (kind, network)


def test_the_mounts_of_this_host() -> None:
    assert mount_of(Path("/proc/self")) == Mount("/proc", "proc")
    assert mount_of(Path("/"), Path("/proc/none")) is None


def test_a_sound_host() -> None:
    assert codes(host_findings()) == []
    assert codes(environment()) == []


def test_a_home_on_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "mount_of", lambda _: Mount("/data", "nfs4"))
    first, second = host_findings()
    assert (first.level, first.code) == ("wrong", "FT707")
    assert first.text.startswith("FLYTUNE_HOME is on a network file system, nfs4: /")
    assert second.text.startswith("TMPDIR is on a network file system, nfs4: /")


@MOUNTS
def test_a_home_without_exec(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    home = str(tmp_path / "home")
    mount = ["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "tmpfs", home]
    subprocess.run(mount, check=True)
    try:
        assert codes(host_findings()) == [("wrong", "FT305")]
    finally:
        subprocess.run(["umount", home], check=True)


@MOUNTS
def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    home = str(tmp_path / "home")
    subprocess.run(["mount", "--bind", "-o", "ro", home, home], check=True)
    try:
        assert codes(host_findings()) == [("wrong", "FT302")]
    finally:
        subprocess.run(["umount", home], check=True)


def test_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_FREE_BYTES", 2**63)
    monkeypatch.setattr(module, "_LEAST_SHARED_BYTES", 2**63)
    shared, home, _ = host_findings()
    assert (shared.level, shared.code) == ("note", "FT708")
    assert shared.text.startswith("/dev/shm is small for Ray: ")
    assert (home.level, home.code) == ("note", "FT712")
    assert home.text.startswith("FLYTUNE_HOME has little room: ")


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    (found,) = host_findings()
    assert found == ("wrong", "FT711", "no C++ compiler: g++")


def test_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    version = namedtuple("version", "major minor micro")
    monkeypatch.setattr(module.sys, "version_info", version(3, 13, 1))
    (found,) = environment()
    assert found == ("wrong", "FT702", "Python is not 3.11 or 3.12: 3.13")


def test_a_gpu_that_torch_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_profile, "_DEVICE_FILES", (str(tmp_path),))
    assert codes(device_findings(None)) == [("note", "FT713")]
    monkeypatch.setattr(device_profile, "_DEVICE_FILES", ())
    assert codes(device_findings(None)) == []


def test_a_gpu_that_is_too_small() -> None:
    h200 = find_profile("h200")
    small = {**h200.properties, "multi_processor_count": 67}
    (found,) = device_findings(replace(h200, properties=small))
    assert (found.level, found.code) == ("wrong", "FT706")
    assert found.text.endswith("NVIDIA H200 has 67 multiprocessors, and 68 are needed")


class Nvml:
    """The part of pynvml that is used, for two devices, one of them used by others."""

    class NVMLError(Exception):
        """Named as NVML's own."""

    def __init__(self, *, broken: bool = False) -> None:
        self._broken = broken

    def nvmlInit(self) -> None:
        if self._broken:
            raise self.NVMLError

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=7), SimpleNamespace(pid=9)] if handle else []

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=93 * handle)


def test_a_gpu_that_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    (found,) = device_findings(find_profile("h200"))
    assert (found.level, found.code) == ("note", "FT710")
    assert found.text == "GPU 1 is used, 93 % of the time, by processes: 7, 9"
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(broken=True))
    assert list(device_findings(find_profile("h200"))) == []


def test_a_flydsl_that_inductor_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    # What it refuses, and in which words, is tested with `require_flydsl`.
    def refuse(arch: str) -> str:
        raise FlytuneError(f"no FlyDSL for {arch}: version 0.5.0 is refused")

    amd = replace(find_profile("mi355x"), board={"memory_partition": "NPS1"})
    monkeypatch.setattr("flytune.tuner.eligibility.require_flydsl", refuse)
    (found,) = device_findings(amd)
    text = "no FlyDSL for gfx950: version 0.5.0 is refused"
    assert found == ("wrong", "FT709", text)
    # An older torch has no templates of it, and other devices get none.
    monkeypatch.setattr("flytune.caches.compat.torch_version", lambda: "2.14.0")
    assert list(device_findings(amd)) == []
    monkeypatch.undo()
    assert list(device_findings(replace(amd, arch="gfx942"))) == []
