"""Compile FlyDSL's candidates for a device that is not here, a process of its own each.

A process that has begun compiles for one architecture, into one directory: FlyDSL
reads both once a function.
"""

import importlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flytune.caches.code_object import lds_bytes
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.directories import FLYDSL_DIR
from flytune.caches.flydsl_kernel import (
    FlyDSLKernel,
    lookups,
    objects_of,
    set_environment,
)
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import Candidate
from flytune.tuner.reference import UnsupportedError
from flytune.tuner.rocm_tools import rocm_for_flydsl

# As the modules that Inductor renders refuse a shape.
_UNSUPPORTED = "unsupported FlyDSL"
_prepared_for = ""
# More code objects than a process traces at a time.
_MOST_POSITIONS = 4096
# More than an entry takes: where so much cannot be written, an entry cannot.
_ENTRY_BYTES = 2**18


class OutOfResources(Exception):
    """A kernel takes more of the device than it has; named as Triton's own."""


def kernel_of(candidate: Candidate) -> FlyDSLKernel:
    """Return a FlyDSL candidate as the proof of its entry takes it.

    Raises:
        Exception: the candidate is of another backend.
    """
    return FlyDSLKernel.of_request(candidate.choice_hash, candidate.request)


def prepare(arch: str, rocm: Path | None = None) -> None:
    """Make this process compile FlyDSL's kernels for one architecture, for good.

    `TORCHINDUCTOR_CACHE_DIR` must be set, to a directory of the process's own.

    Args:
        arch: Such as "gfx950".
        rocm: Folder in which to make what FlyDSL links with, where this host has no
            ROCm; processes may share it. The cache directory where None.

    Raises:
        FlytuneError: FlyDSL is not installed or changed an interface, there is nothing
            to link with, or the process compiles for another architecture.
    """
    global _prepared_for
    if _prepared_for == arch:
        return
    if _prepared_for:
        raise FlytuneError(f"this process compiles for {_prepared_for}, not {arch}")
    cache_dir = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    root = rocm_for_flydsl(rocm or cache_dir)
    set_environment(cache_dir, arch, ROCM_PATH=str(root))
    lookups()
    remember_positions()
    _prepared_for = arch


def compile_flydsl(candidate: Candidate, profile: DeviceProfile) -> dict[str, bytes]:
    """Compile a candidate, or find it where this process has, and return its entry.

    Raises:
        UnsupportedError: the kernel is not for this shape.
        OutOfResources: it takes more LDS than a workgroup may have.
        FlytuneError: this process cannot compile FlyDSL's kernels.
        Exception: whatever FlyDSL raises.
    """
    prepare(profile.arch)
    try:
        entries = kernel_of(candidate).precompile()
    except RuntimeError as error:
        if str(error).startswith(_UNSUPPORTED):
            raise UnsupportedError(str(error)) from error
        raise
    return checked(entries, profile)


def checked(entries: Sequence[Path], profile: DeviceProfile) -> dict[str, bytes]:
    """Return the entries that FlyDSL has just written, by their paths in a cache.

    Raises:
        OutOfResources: a kernel takes more LDS than a workgroup may have, which FlyDSL
            compiles all the same.
        OSError: one is not there: FlyDSL only logs it when it cannot write.
        ValueError: one is for another device.
    """
    files = {}
    for path in entries:
        if not path.exists():
            _try_to_write(path.parent)
            raise FileNotFoundError(f"FlyDSL has written no entry: {path.name}")
        entry = path.read_bytes()
        require_shared(max(map(lds_bytes, objects_of(entry, profile.arch))), profile)
        files[f"{FLYDSL_DIR}/{path.parent.name}/{path.name}"] = entry
    return files


def require_shared(taken_bytes: int, profile: DeviceProfile) -> None:
    """Refuse a kernel that takes more shared memory, or LDS, than a block may have.

    Raises:
        OutOfResources: it does.
    """
    if taken_bytes > profile.max_shared_bytes:
        raise OutOfResources(
            f"shared memory: {taken_bytes} of {profile.max_shared_bytes} bytes"
        )


def _try_to_write(folder: Path) -> None:
    """Raise what keeps this process from writing there, such as a full disk."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(bytes(_ENTRY_BYTES))
        file.flush()
        os.fsync(file.fileno())


def remember_positions() -> None:
    """Make Python's `inspect` remember where each instruction of a function stands.

    FlyDSL asks for it at each operation that it traces, and `inspect` counts anew from
    the function's start. Nothing is done where Python does it in another way.
    """
    inspect: Any = importlib.import_module("inspect")
    if hasattr(inspect, "_get_code_position"):
        inspect._get_code_position = _position


_Position = tuple[int | None, int | None, int | None, int | None]
# By identity, because two functions may be equal and stand in two places; each is kept
# alive, so that no other takes its place.
_positions: dict[int, tuple[Any, tuple[_Position, ...]]] = {}


def _position(code: Any, index: int) -> _Position:
    if index < 0:
        return (None, None, None, None)
    known = _positions.get(id(code))
    if known is None:
        if len(_positions) >= _MOST_POSITIONS:
            _positions.clear()
        known = _positions[id(code)] = (code, tuple(code.co_positions()))
    return known[1][index // 2]
