"""The process of a device: an actor of Ray's, which is started again when it dies.

It lives on between lists, because importing torch costs seconds.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flytune.caches.records import Status
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask, failure
from flytune.tuner.ceilings import measure_ceilings
from flytune.tuner.cluster import (
    own_cache_directory,
    own_cores,
    ray_failed,
    refuse_full_disk,
    require_head,
)
from flytune.tuner.nodes import difference_here, last_line, there_only
from flytune.tuner.runner import Device, DeviceLostError, Runner
from flytune.tuner.timing import TimingPlan
from flytune.tuner.vendors import VENDORS

MakeRunner = Callable[[Device], Runner]
"""Makes the runner of a device, in its actor's process."""

_TELL_S = 1.0
_DIED = "the device's process died"
_POLL_S = 1.0


class _RunnerActor:
    """The actor's side: a runner in a process of its own."""

    def __init__(self, device: Device, make: MakeRunner) -> None:
        self._device, self._make = device, make

    def here(self) -> None:
        """Return once the process has what Ray gives it."""

    def ready(self, expected: Target | None) -> str:
        """Return once the process has its device, or why its node is not to time."""
        if expected is not None and (found := difference_here(expected)):
            return found
        own_cache_directory()
        self._runner = self._make(self._device)
        return ""

    def begin(self, task: TuneTask) -> None:
        self._runner.begin(task)

    def check(self, builds: Sequence[BuildResult]) -> list[RunResult]:
        """Check as many as fit into a moment, at least one."""
        start, results = time.monotonic(), []
        for build in builds:
            results.append(self._runner.check(build))
            if time.monotonic() - start > _TELL_S:
                break
        return results

    def measure(self, names: Sequence[str], plan: TimingPlan) -> tuple[RunResult, ...]:
        return self._runner.measure(names, plan)

    def ceilings(self, types: Mapping[str, str]) -> dict[str, Any]:
        # The operands of the last list may fill the device.
        self._runner.end()
        return measure_ceilings(self._device.kind, types)


def local_runner(device: Device) -> Runner:
    """Return the runner of a device of this process's own."""
    if device.kind == "cpu":
        from flytune.tuner.cpu_runner import CpuRunner

        return CpuRunner(device)
    from flytune.tuner.accelerator_runner import AcceleratorRunner

    VENDORS[device.vendor].require_mask(os.environ)
    return AcceleratorRunner(device)


class DeviceGoneError(FlytuneError):
    """The device's node has left: no fault of the list that it held."""


class RunnerDiedError(Exception):
    """A call of the actor failed; says how, in a status and words."""

    def __init__(
        self, status: Status, reason: str, *, killed: bool, doubtful: bool = False
    ) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason
        self.killed = killed
        """Whether the process had to be replaced."""
        self.doubtful = doubtful
        """Whether somebody else may have killed it."""

    def of(self, name: str) -> RunResult:
        """Return the result of the candidate that did it."""
        cost = self.killed and self.status is not Status.OUT_OF_MEMORY
        return RunResult(name, self.status, self.reason, cost_the_process=cost)


class DeviceProcess:
    """The driver's handle of a device's actor."""

    def __init__(
        self,
        device: Device,
        threads: int,
        begin_s: float,
        node: str | None = None,
        make: MakeRunner = local_runner,
        expected: Target | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            threads: Of OpenMP, in the process.
            begin_s: How long it may take to start.
            node: Where an accelerator is, by Ray's name; None: wherever there is one.
            make: Makes the runner.
            expected: As `kernel_target` on the driver's host, where nodes may join.
        """
        self._expected = expected
        self._device, self._threads, self._begin_s = device, threads, begin_s
        self._node, self._make = node, make
        self._actor: Any = None
        self._ready = self._closed = False

    def start(self) -> None:
        """Let the actor start, if there is none, while the caller does other things.

        Raises:
            DeviceGoneError: it was closed.
        """
        if self._closed:
            raise DeviceGoneError("the device was given back")
        if self._actor is None:
            self._actor = self._started()

    def call(self, method: str, deadline_s: float, *args: Any) -> Any:
        """Return what a method of the actor returns.

        Raises:
            RunnerDiedError: the actor is dead, or what it ran has raised.
            DeviceGoneError: its node has left.
            FlytuneError: Ray itself fails, or the disk is full.
        """
        import ray

        self.start()
        with self._deaths(deadline_s):
            self._await_device()
            call = getattr(self._actor, method).remote(*args)
            result = ray.get(call, timeout=deadline_s)
        if method == "check":
            for one in result:
                refuse_full_disk(one.reason)
        return result

    @contextlib.contextmanager
    def _deaths(self, deadline_s: float) -> Iterator[None]:
        """Say in our own words how a call of the actor fails, and end what is left.

        Raises:
            RunnerDiedError: the actor is dead, or what it ran has raised.
            DeviceGoneError: its node has left.
            FlytuneError: Ray itself fails, or the disk is full.
        """
        from ray import exceptions as broken

        try:
            yield
        except broken.GetTimeoutError as error:
            self.kill()
            words = f"no result in {deadline_s:g} s"
            raise RunnerDiedError(Status.TIMEOUT, words, killed=True) from error
        except broken.RayTaskError as error:
            # A kernel raised while it was timed; the process may be as well as before.
            status, reason = failure(error.cause, Status.FAULT)
            if lost := isinstance(error.cause, DeviceLostError):
                self.kill()
                status, reason = Status.FAULT, str(error.cause)
            refuse_full_disk(reason)
            raise RunnerDiedError(status, reason, killed=lost) from error
        except broken.OutOfMemoryError as error:
            self.kill()
            words = "out of memory"
            raise RunnerDiedError(Status.OUT_OF_MEMORY, words, killed=True) from error
        except (broken.RayActorError, broken.WorkerCrashedError) as error:
            self.kill()
            reason = _death(error)
            refuse_full_disk(reason)
            doubtful = reason == _DIED
            raise RunnerDiedError(
                Status.FAULT, reason, killed=True, doubtful=doubtful
            ) from error
        except broken.RayError as error:
            self.kill()
            if isinstance(error, broken.ActorUnschedulableError) and self._node:
                words = f"the node of a device has left: {self._node}"
                raise DeviceGoneError(words) from error
            raise ray_failed("time", error) from error

    def _await_device(self) -> None:
        """Wait until Ray has what the actor needs, and until the actor has its device.

        Others may use the cluster: the first may take any time.

        Raises:
            RunnerDiedError: the actor cannot take its device.
            DeviceGoneError: its node may not time.
        """
        import ray

        if self._ready:
            return
        here = self._actor.here.remote()
        while not ray.wait([here], timeout=_POLL_S)[0]:
            require_head()
        ray.get(here)
        try:
            ready = self._actor.ready.remote(self._expected)
            unfit = ray.get(ready, timeout=self._begin_s)
        except ray.exceptions.RayTaskError as error:
            self.kill()
            refuse_full_disk(str(error))
            words = f"it cannot start: {last_line(error)}"
            raise RunnerDiedError(Status.FAULT, words, killed=True) from error
        if unfit:
            self.close()
            raise DeviceGoneError(f"a node that joined cannot time: {unfit}")
        self._ready = True

    def _started(self) -> Any:
        import ray

        options: dict[str, Any] = {
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(self._threads)}}
        }
        if self._device.kind != "cpu":
            # No core: it lives on, and builds on a host with few would wait for it.
            node, cores, gpus = self._node, 0, 1
        else:
            # On this host, which the bundle is for, and on all of its cores: nothing
            # else of ours may run while the device is timed.
            node, cores = own_cores(self._threads)
            gpus = 0
        if node is not None:
            options["scheduling_strategy"] = there_only(node)
        make = ray.remote(num_cpus=cores, num_gpus=gpus, max_restarts=0)(_RunnerActor)
        return make.options(**options).remote(self._device, self._make)

    def close(self) -> None:
        """End the actor for good: a thread that still times must not start another."""
        self._closed = True
        self.kill()

    def kill(self) -> None:
        """End the actor, if there is one, and give back what it holds."""
        import ray

        if self._actor is not None:
            ray.kill(self._actor)
            self._actor, self._ready = None, False


def _death(error: Exception) -> str:
    """Say how the device's process died; one that could not start says why."""
    if "creation task" in str(error):
        return f"it cannot start: {last_line(error)}"
    return _DIED
