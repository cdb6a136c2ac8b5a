"""The Ray workers: a task a compilation, an actor a device.

Worker processes live on between tasks, because importing torch costs seconds; one that
dies or hangs costs the candidate that it held, and that becomes a result.
"""

import importlib
import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flytune.caches.device_profile import DeviceProfile
from flytune.caches.flydsl_kernel import BLIND
from flytune.caches.inductor import CODECACHE
from flytune.caches.records import Status
from flytune.caches.stand_in import set_triton_target
from flytune.shapes.errors import FlytuneError
from flytune.tuner.builder import build, forget_kernels
from flytune.tuner.candidate import FLYDSL, BuildResult, Candidate, failure
from flytune.tuner.cluster import (
    WORKER_ENV,
    full_disk,
    joined,
    own_cache_directory,
    ray_failed,
    refuse_full_disk,
)
from flytune.tuner.flydsl_builder import prepare
from flytune.tuner.remote_runner import Deadlines, RemoteRunner
from flytune.tuner.runner import Device

__all__ = ["Deadlines", "Farm"]


class Farm:
    """A Ray cluster that was joined, or a local one that ends with this context."""

    def __init__(
        self,
        address: str | None,
        env: Mapping[str, str],
        deadlines: Deadlines,
        profile: DeviceProfile | None = None,
        *,
        flydsl: bool = False,
    ) -> None:
        """Join when this context is entered.

        Args:
            address: Of a running cluster; None starts one on this host.
            env: What every worker's environment holds.
            deadlines: How long to wait for a worker.
            profile: Of the accelerator that is built for; None for the CPU.
            flydsl: Whether FlyDSL makes some of its kernels.
        """
        self._deadlines, self._profile = deadlines, profile
        self._session = joined(
            address,
            {**env, **WORKER_ENV},
            accelerator=profile is not None,
            flydsl=flydsl,
        )
        self._most = math.inf
        self._runners: list[RemoteRunner] = []

    def __enter__(self) -> "Farm":
        self._session.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._session.__exit__(*exception)

    def warm(self) -> list[Any]:
        """Let workers import what compiling takes; return before they have.

        Returns:
            What `ray.get` waits for them by.
        """
        import ray

        remote = self._remote(_import_in_worker)
        count = min(_slots(ray.nodes()), _MOST_WARM)
        return [remote.remote(self._profile) for _ in range(count)]

    def _remote(self, function: Callable[..., Any], **options: Any) -> Any:
        """Return a function that a worker of a build runs."""
        import ray

        needs = _needs(ray.nodes())
        remote = ray.remote(**needs, max_retries=0, **options)(function)
        if self._profile is None:
            return remote
        return remote.options(runtime_env={"env_vars": BLIND})

    def build_all(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[BuildResult | None]:
        """Build every candidate; results come as they end, one each.

        None comes in between, about once a second, so that the caller can do other
        things too. As many run at once as the cluster has cores and memory. A worker
        that dies or outlasts the deadline gives a result that says so.

        Raises:
            FlytuneError: Ray itself fails or has no cores, or a disk is full.
        """
        import ray

        nodes = ray.nodes()
        remote = self._remote(_build_in_worker, num_returns="streaming")
        waiting = list(reversed(candidates))
        running: dict[Any, tuple[str, float]] = {}
        slots = _slots(nodes)
        if waiting and slots < 1:
            raise FlytuneError("no node of the Ray cluster has a core to build on")
        while waiting or running:
            # As many again wait for a worker, which then need not wait for the driver.
            while waiting and len(running) < min(2 * slots, self._most):
                candidate = waiting.pop()
                stream = remote.remote(candidate, self._profile)
                # Others may use the cluster: the clock starts when the task does.
                running[stream] = (candidate.choice_hash, math.inf)
            done, _ = ray.wait(list(running), num_returns=1, timeout=1.0)
            yield None
            for stream in done:
                name, _ = running.pop(stream)
                if (result := _next_of(stream, name)) is not None:
                    yield result
                else:
                    deadline = time.monotonic() + self._deadlines.build_s
                    running[stream] = (name, deadline)
            for stream, (name, deadline) in list(running.items()):
                if time.monotonic() > deadline:
                    ray.cancel(stream, force=True)
                    del running[stream]
                    seconds = self._deadlines.build_s
                    yield BuildResult(name, Status.TIMEOUT, f"no result in {seconds} s")

    def throttle(self) -> int:
        """Build half as many at once from now on; return how many that is."""
        import ray

        slots = _slots(ray.nodes())
        self._most = max(1, int(min(slots, self._most)) // 2)
        return self._most

    def runners(self, device: Device, threads: int) -> tuple[RemoteRunner, ...]:
        """Return a handle for each device's actor, started at its first use.

        Raises:
            FlytuneError: the cluster has no such device.
        """
        import ray

        count = 1
        if device.kind != "cpu":
            count = int(ray.cluster_resources().get("GPU", 0))
        if count < 1:
            raise FlytuneError(
                f"no node of the Ray cluster has a device: {device.name}",
                hint="start Ray where it sees one, or leave --ray out",
            )
        made = [RemoteRunner(device, threads, self._deadlines) for _ in range(count)]
        self._runners += made
        return tuple(made)

    def stop_runners(self) -> None:
        """End every device's actor: the next build of a fleet needs what they hold."""
        while self._runners:
            self._runners.pop().stop()


# Few builds have more to compile in their first seconds.
_MOST_WARM = 32
# A compiler, and torch beside it: a node builds no more at once than its memory holds.
_BUILD_BYTES = 2**30
# What a compilation may add to its process, beyond which it fails as out of memory.
_BUILD_CAP_BYTES = 8 * 2**30


def _slots(nodes: Sequence[Mapping[str, Any]]) -> int:
    """Return how many builds the cluster's cores and memory allow at once."""
    bytes_each = _needs(nodes).get("memory", 0)
    slots = 0
    for node in nodes:
        resources = node["Resources"] if node["Alive"] else {}
        cores = int(resources.get("CPU", 0))
        memory = resources.get("memory", 0)
        slots += min(cores, int(memory // bytes_each)) if bytes_each else cores
    return slots


def _needs(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what Ray must have free on a node to start a build there.

    Memory is left out where no node declares enough of it for a single build.
    """
    declared = [node["Resources"].get("memory", 0) for node in nodes if node["Alive"]]
    if max(declared, default=0) < _BUILD_BYTES:
        return {"num_cpus": 1}
    return {"num_cpus": 1, "memory": _BUILD_BYTES}


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


def _import_in_worker(profile: DeviceProfile | None) -> None:
    """Do once what would delay the first compilation."""
    own_cache_directory()
    importlib.import_module(CODECACHE)
    if profile is not None:
        importlib.import_module("torch._inductor.runtime.triton_heuristics")
        set_triton_target(profile)


def _build_in_worker(
    candidate: Candidate, profile: DeviceProfile | None
) -> Iterator[BuildResult | None]:
    """Yield None at once, which starts the driver's clock, and then the result."""
    yield None
    own_cache_directory()
    if candidate.backend == FLYDSL and profile is not None:
        # What they link with is made once a node, beside the workers' directories.
        prepare(profile.arch, Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent)
    with _memory_cap():
        result = build(candidate, profile)
    if profile is not None:
        forget_kernels()
    # Compilers say in words of their own, and far down, that the disk is full.
    if result.status is not Status.OK and (reason := full_disk()):
        result = BuildResult(candidate.choice_hash, Status.FAULT, reason)
    yield result


def _next_of(stream: Iterator[Any], name: str) -> BuildResult | None:
    """Return what a task said last: None once it has begun, and then its result.

    Raises:
        FlytuneError: Ray failed or a disk is full, which is no fault of the candidate.
    """
    import ray

    try:
        result: BuildResult | None = ray.get(next(stream))
    except ray.exceptions.OutOfMemoryError:
        return BuildResult(name, Status.OUT_OF_MEMORY, "the worker ran out of memory")
    except ray.exceptions.WorkerCrashedError:
        return BuildResult(name, Status.FAULT, "the compiling process died")
    except ray.exceptions.RayTaskError as error:
        if "failed to import on the worker" in str(error):
            raise ray_failed("build", error) from error
        if isinstance(error.cause, FlytuneError):
            # No candidate's fault: a node lacks what it compiles with.
            raise error.cause from None
        result = BuildResult(name, *failure(error.cause, Status.FAULT))
    except ray.exceptions.RayError as error:
        raise ray_failed("build", error) from error
    if result is not None:
        refuse_full_disk(result.reason)
    return result
