"""Compile one candidate, in a process that never sees the device."""

import json
import os
import pickle
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flytune.caches.compat import private
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.directories import FLYDSL_DIR, TRITON_DIR
from flytune.caches.inductor import CODECACHE
from flytune.caches.records import Status
from flytune.caches.stand_in import set_triton_target
from flytune.caches.triton_cache import is_group
from flytune.tuner.candidate import (
    ATEN,
    FLYDSL,
    TRITON,
    BuildResult,
    Candidate,
    failure,
)
from flytune.tuner.flydsl_builder import compile_flydsl, require_shared
from flytune.tuner.reference import UnsupportedError
from flytune.tuner.subgraph import DECOMPOSE_K, compile_kernels

# What a kernel is loaded from; Triton's stages before it are left out.
_TRITON_SUFFIXES = frozenset({".cubin", ".json", ".hsaco"})


def build(candidate: Candidate, profile: DeviceProfile | None = None) -> BuildResult:
    """Compile a candidate and return the files that running it needs.

    The process must have `TORCHINDUCTOR_CACHE_DIR` set to a directory of its own.
    A compilation that fails is a result, never an exception.

    Args:
        profile: Of the accelerator that Triton compiles for; None on the CPU.
    """
    if candidate.backend == ATEN:
        return BuildResult(candidate.choice_hash, Status.OK)
    start = time.perf_counter()
    try:
        files = _compiled(candidate, profile)
    except UnsupportedError as error:
        return BuildResult(candidate.choice_hash, Status.UNSUPPORTED, str(error))
    except Exception as error:  # a compiler may fail in any way: it becomes a row
        status, reason = failure(error, Status.COMPILE_ERROR)
        return BuildResult(candidate.choice_hash, status, reason)
    return BuildResult(
        candidate.choice_hash,
        Status.OK,
        compile_s=time.perf_counter() - start,
        files=files,
    )


def _compiled(
    candidate: Candidate, profile: DeviceProfile | None
) -> Mapping[str, bytes]:
    """Compile a candidate and return its files by their paths in the directory.

    Raises:
        UnsupportedError: there is nothing to compile.
        Exception: whatever the compiler raises.
    """
    if candidate.backend == FLYDSL and profile is not None:
        return compile_flydsl(candidate, profile)
    root = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    before = _files(root)
    if candidate.backend == TRITON and profile is not None:
        _compile_triton(candidate, profile)
    elif candidate.backend == DECOMPOSE_K and candidate.source and profile:
        set_triton_target(profile)
        compile_kernels(candidate.source)
    else:
        _precompile(candidate)
    made = sorted(_files(root) - before)
    files = {name: (root / name).read_bytes() for name in made}
    if profile is not None:
        _refuse_too_large(files, profile)
    return files


def _refuse_too_large(files: Mapping[str, bytes], profile: DeviceProfile) -> None:
    """Refuse a Triton kernel that takes more shared memory than a block may have.

    Triton itself looks only when it loads one.

    Raises:
        OutOfResources: one of the kernels does.
    """
    for name, text in files.items():
        path = Path(name)
        if path.suffix == ".json" and not is_group(path):
            require_shared(int(json.loads(text).get("shared", 0)), profile)


def _precompile(candidate: Candidate) -> None:
    """Compile by Inductor's own request.

    Raises:
        UnsupportedError: Inductor has none.
        Exception: whatever the compiler raises.
    """
    request = pickle.loads(candidate.request)
    if request is None:
        raise UnsupportedError(f"Inductor has no kernel to build: {candidate.template}")
    request.precompile()


def _compile_triton(candidate: Candidate, profile: DeviceProfile) -> None:
    """Compile into Triton's cache as a process with the device would, and load nothing.

    Raises:
        Exception: whatever Triton or its assembler raises.
    """
    set_triton_target(profile)
    kernel = load_triton(candidate)
    kernel.precompile(warm_cache_only=True)


def load_triton(candidate: Candidate) -> Any:
    """Return the kernel of a candidate's module, from this process's own copy of it."""
    request = pickle.loads(candidate.request)
    key = request.module_cache_key
    path = source_path(key)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(candidate.source)
    load = private(CODECACHE, "PyCodeCache.load_by_key_path")[2]
    return getattr(load(key, str(path)), request.kernel_name)


def source_path(key: str) -> Path:
    """Return where Inductor keeps a module in this process's cache directory."""
    return Path(private(CODECACHE, "get_path")[2](key, "py")[2])


def forget_kernels() -> None:
    """Remove what accelerator builds have left in this process's cache directory.

    A process that lives on would look through more files with every build. FlyDSL's
    entries stay: several candidates share one.
    """
    for path in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).iterdir():
        if path.is_dir() and path.name != FLYDSL_DIR:
            shutil.rmtree(path)


def _files(root: Path) -> set[str]:
    found = set()
    for folder, _, names in os.walk(root):
        inside = Path(folder).relative_to(root)
        stages = inside.parts[:1] == (TRITON_DIR,)
        for name in names:
            suffix = os.path.splitext(name)[1]
            if suffix in _TRITON_SUFFIXES or not (stages or suffix == ".lock"):
                found.add(str(inside / name))
    return found
