"""The Ray workers: a task a compilation, an actor a device.

Worker processes live on between tasks, because importing torch costs seconds; one that
dies or hangs costs the candidate that it held, and that becomes a result.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flytune.caches.records import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.builder import build
from flytune.tuner.candidate import BuildResult, Candidate, failure
from flytune.tuner.cluster import (
    full_disk,
    joined,
    own_cache_directory,
    ray_failed,
    refuse_full_disk,
)
from flytune.tuner.remote_runner import Deadlines, RemoteRunner
from flytune.tuner.runner import Device

__all__ = ["Deadlines", "Farm"]


class Farm:
    """A Ray cluster that was joined, or a local one that ends with this context."""

    def __init__(
        self, address: str | None, env: Mapping[str, str], deadlines: Deadlines
    ) -> None:
        self._deadlines = deadlines
        self._session = joined(address, {**env, **_WORKER_ENV})

    def __enter__(self) -> "Farm":
        self._session.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._session.__exit__(*exception)

    def build_all(self, candidates: Sequence[Candidate]) -> Iterator[BuildResult]:
        """Build every candidate; results come as they end, one each.

        As many run at once as the cluster has cores. A worker that dies or outlasts
        the deadline gives a result that says so.

        Raises:
            FlytuneError: Ray itself fails or has no cores, or a disk is full.
        """
        import ray

        remote = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(
            _build_in_worker
        )
        waiting = list(reversed(candidates))
        running: dict[Any, tuple[str, float]] = {}
        slots = int(ray.cluster_resources().get("CPU", 0))
        if waiting and slots < 1:
            raise FlytuneError("no node of the Ray cluster has a core to build on")
        while waiting or running:
            while waiting and len(running) < slots:
                candidate = waiting.pop()
                # Others may use the cluster: the clock starts when the task does.
                running[remote.remote(candidate)] = (candidate.choice_hash, math.inf)
            done, _ = ray.wait(list(running), num_returns=1, timeout=1.0)
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

    def runner(self, device: Device, threads: int) -> RemoteRunner:
        """Return the handle of a device's actor, started at its first use."""
        return RemoteRunner(device, threads, self._deadlines)


_WORKER_ENV = {
    # The candidates were listed under this instruction set: building needs no probe.
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "HF_HUB_OFFLINE": "1",
}


def _build_in_worker(candidate: Candidate) -> Iterator[BuildResult | None]:
    """Yield None at once, which starts the driver's clock, and then the result."""
    yield None
    own_cache_directory()
    result = build(candidate)
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
        result = BuildResult(name, *failure(error.cause, Status.FAULT))
    except ray.exceptions.RayError as error:
        raise ray_failed("build", error) from error
    if result is not None:
        refuse_full_disk(result.reason)
    return result
