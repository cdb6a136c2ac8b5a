"""Every reason why tuning or serving would go wrong on a host, with its code."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from flytune.caches.codes import Code
from flytune.caches.home import existing, flytune_home, without_exec
from flytune.caches.mounts import mount_of
from flytune.tuner.masks import confusion, contradiction

if TYPE_CHECKING:
    from flytune.caches.device_profile import DeviceProfile

PYTHONS = ((3, 11), (3, 12))
_SHARED = Path("/dev/shm")
# OBJECT_STORE_MINIMUM_MEMORY_BYTES of ray/_private/ray_constants.py; with less there
# Ray keeps its objects on disk.
_LEAST_SHARED_BYTES = 75 * 2**20
# A build's scratch and a bundle with all that is compiled for it.
_LEAST_FREE_BYTES = 2 * 2**30


class Finding(NamedTuple):
    """One thing that is to be known before a build or a server is started."""

    level: Literal["wrong", "note"]
    """Whether something will fail, or is only to be known."""
    code: Code
    text: str


def findings(live: "DeviceProfile | None") -> tuple[Finding, ...]:
    """Return what is wrong here, and then what is only to be known.

    Args:
        live: The accelerator at hand.
    """
    found = [*environment(), *host_findings(), *device_findings(live)]
    return tuple(sorted(found, key=lambda finding: finding.level != "wrong"))


def environment() -> Iterator[Finding]:
    """Yield what is wrong with torch, Python and the variables that are set."""
    from flytune.caches.compat import require_torch
    from flytune.shapes.errors import FlytuneError

    try:
        require_torch()
    except FlytuneError as error:
        yield Finding("wrong", Code.TORCH, str(error))
    if sys.version_info[:2] not in PYTHONS:
        here = ".".join(map(str, sys.version_info[:2]))
        yield Finding("wrong", Code.PYTHON, f"Python is not 3.11 or 3.12: {here}")
    if wrong := contradiction(os.environ):
        yield Finding("wrong", Code.MASKS, wrong)
    if unclear := confusion(os.environ):
        yield Finding("note", Code.MASKS_UNCLEAR, unclear)


def host_findings() -> Iterator[Finding]:
    """Yield what is wrong with this host's disks, memory and compiler."""
    from flytune.caches.host import ABSENT, compiler

    if compiler() == ABSENT:
        text = f"no C++ compiler: {os.environ.get('CXX', 'g++')}"
        yield Finding("wrong", Code.COMPILER, text)
    try:
        shared = shutil.disk_usage(_SHARED).total
    except OSError:
        shared = 0
    if shared < _LEAST_SHARED_BYTES:
        text = f"{_SHARED} is small for Ray: {shared / 2**20:.0f} MiB"
        yield Finding("note", Code.SHARED_MEMORY, text)
    places = {"FLYTUNE_HOME": flytune_home(), "TMPDIR": Path(tempfile.gettempdir())}
    for name, place in places.items():
        yield from _place(name, place)


def _place(name: str, place: Path) -> Iterator[Finding]:
    mount = mount_of(place)
    if mount is not None and mount.is_network:
        text = f"{name} is on a network file system, {mount.kind}: {place}"
        yield Finding("wrong", Code.NETWORK, text)
    there = existing(place)
    try:
        noexec, free = without_exec(there), shutil.disk_usage(there).free
    except OSError as error:
        text = f"{name} cannot be looked at: {place}: {error.strerror}"
        yield Finding("wrong", Code.UNWRITABLE, text)
        return
    if noexec:
        text = f"{name} is on a mount without exec: {place}"
        yield Finding("wrong", Code.NO_EXEC, text)
    if not os.access(there, os.W_OK):
        yield Finding("wrong", Code.UNWRITABLE, f"{name} cannot be written: {place}")
    if free < _LEAST_FREE_BYTES:
        text = f"{name} has little room: {place}: {free / 2**30:.1f} GiB"
        yield Finding("note", Code.LITTLE_DISK, text)


def device_findings(live: "DeviceProfile | None") -> Iterator[Finding]:
    """Yield what is wrong with the accelerator at hand.

    Args:
        live: None where there is none, or none that torch can use.
    """
    from flytune.caches.compat import release, torch_version
    from flytune.caches.device_profile import may_have_accelerator
    from flytune.shapes.errors import FlytuneError
    from flytune.tuner.eligibility import FIRST_TORCH, require_flydsl
    from flytune.tuner.plan_device import AMD_ARCHS, is_small
    from flytune.tuner.telemetry import users

    if live is None:
        if may_have_accelerator():
            text = "a GPU's driver is here, and torch can use no GPU"
            yield Finding("note", Code.NO_DEVICE, text)
        return
    if small := is_small(live):
        yield Finding("wrong", Code.SMALL_GPU, small)
    for text in users() if live.vendor == "nvidia" else ():
        yield Finding("note", Code.BUSY, text)
    if live.vendor != "amd":
        return
    if not live.board:
        text = (
            "amdsmi, which comes with ROCm, tells nothing of this GPU: clocks, "
            "temperatures, throttling and partitions will not be recorded"
        )
        yield Finding("note", Code.AMDSMI, text)
    if live.arch in AMD_ARCHS and release(torch_version()) >= FIRST_TORCH:
        try:
            require_flydsl(live.arch)
        except FlytuneError as error:
            yield Finding("wrong", Code.FLYDSL, str(error))
