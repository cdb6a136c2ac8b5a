"""What a Ray worker does that compiles candidates.

Its process lives on between tasks, because importing torch costs seconds.
"""

import importlib
import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flytune.caches.columns import Status
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.inductor import CODECACHE
from flytune.caches.stand_in import set_triton_target
from flytune.caches.target import Target
from flytune.tuner.builder import build, forget_kernels
from flytune.tuner.candidate import FLYDSL, BuildResult, Candidate
from flytune.tuner.cluster import FULL, full_disk, own_cache_directory
from flytune.tuner.flydsl_builder import prepare
from flytune.tuner.nodes import difference_here

# What a compilation may add to its process, beyond which it fails as out of memory.
_BUILD_CAP_BYTES = 8 * 2**30
TELL_S = 5.0
"""Results of a batch travel together, unless it takes longer than this."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A worker has taken the batch: the driver's clock starts."""

    node: str
    """Ray's name of the node."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """A node that cannot build, through no candidate's fault."""

    node: str
    reason: str


Told = Begun | Unfit | tuple[BuildResult, ...]
"""What a worker says; results are those of the batch's next candidates."""


def import_in_worker(profile: DeviceProfile | None) -> None:
    """Do once what would delay the first compilation."""
    own_cache_directory()
    importlib.import_module(CODECACHE)
    if profile is not None:
        importlib.import_module("torch._inductor.runtime.triton_heuristics")
        set_triton_target(profile)


def build_in_worker(
    batch: Sequence[Candidate],
    profile: DeviceProfile | None,
    expected: Target | None = None,
) -> Iterator[Told]:
    """Compile a batch, one candidate after another, and tell of them as they end.

    Args:
        profile: Of the accelerator that is compiled for; None for the CPU.
        expected: As `kernel_target` on the driver's host; None where this is that one.
    """
    import ray

    node = ray.get_runtime_context().get_node_id()
    if expected is not None and (found := difference_here(expected)):
        yield Unfit(node, found)
        return
    yield Begun(node)
    try:
        own_cache_directory()
    except OSError as error:
        if error.errno not in FULL:
            raise
        yield Unfit(node, f"{error.strerror}: {error.filename}")
        return
    yield from build_in_turn(batch, profile, node)


def build_in_turn(
    batch: Sequence[Candidate], profile: DeviceProfile | None, node: str
) -> Iterator[Told]:
    """Compile in this process; tell of what comes within a moment together."""
    done: list[BuildResult] = []
    told = time.monotonic()
    for candidate in batch:
        result = _build_one(candidate, profile)
        # Compilers say in words of their own, and far down, that the disk is full.
        full = "" if result.status is Status.OK else full_disk()
        if not full:
            done.append(result)
        if done and (full or time.monotonic() - told > TELL_S):
            yield tuple(done)
            done, told = [], time.monotonic()
        if full:
            yield Unfit(node, full)
            return
    if done:
        yield tuple(done)


def _build_one(candidate: Candidate, profile: DeviceProfile | None) -> BuildResult:
    if candidate.backend == FLYDSL and profile is not None:
        # What they link with is made once a node, beside the workers' directories.
        prepare(profile.arch, Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent)
    with _memory_cap():
        result = build(candidate, profile)
    if profile is not None:
        forget_kernels()
    return result


@contextmanager
def _memory_cap() -> Iterator[None]:
    """Let this process and its compilers take so much more data, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    cap = pages * resource.getpagesize() + _BUILD_CAP_BYTES
    if hard != resource.RLIM_INFINITY:
        cap = min(cap, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (cap, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
