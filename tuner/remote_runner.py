"""The actor that runs candidates on a device, and the driver's side of it.

It lives on between tasks, because importing torch costs seconds; a candidate that kills
or hangs it costs that candidate alone, and becomes a result.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flytune.caches.records import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask, failure
from flytune.tuner.ceilings import measure_ceilings
from flytune.tuner.cluster import (
    own_cache_directory,
    own_cores,
    ray_failed,
    refuse_full_disk,
)
from flytune.tuner.runner import Device, DeviceLostError, Runner
from flytune.tuner.timing import TimingPlan
from flytune.tuner.vendors import VENDORS


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the driver waits before it kills a worker."""

    build_s: float = 300.0
    begin_s: float = 300.0
    """Of starting the device's process and making a task's operands."""
    check_s: float = 300.0
    """Of checking one candidate: packing a head takes tens of seconds."""
    measure_s: float = 600.0


class _RunnerActor:
    """The actor's side: a runner in a process of its own."""

    def __init__(self, device: Device) -> None:
        own_cache_directory()
        self._kind = device.kind
        self._runner = _local_runner(device)

    def ready(self) -> None:
        """Return once the process has torch and its ledger."""

    def begin(self, task: TuneTask) -> None:
        self._runner.begin(task)

    def check(self, build_result: BuildResult) -> RunResult:
        return self._runner.check(build_result)

    def measure(self, names: Sequence[str], plan: TimingPlan) -> tuple[RunResult, ...]:
        return self._runner.measure(names, plan)

    def ceilings(self, types: Mapping[str, str]) -> dict[str, Any]:
        # The operands of the last list may fill the device.
        self._runner.end()
        return measure_ceilings(self._kind, types)


def _local_runner(device: Device) -> Runner:
    if device.kind == "cpu":
        from flytune.tuner.cpu_runner import CpuRunner

        return CpuRunner(device)
    from flytune.tuner.accelerator_runner import AcceleratorRunner

    VENDORS[device.vendor].require_mask(os.environ)
    return AcceleratorRunner(device)


class RunnerDiedError(Exception):
    """A call of the actor failed; says how, in a status and words."""

    def __init__(self, status: Status, reason: str, *, killed: bool) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason
        self.killed = killed
        """Whether the process had to be replaced."""

    def of(self, name: str) -> RunResult:
        """Return the result of the candidate that did it."""
        cost = self.killed and self.status is not Status.OUT_OF_MEMORY
        return RunResult(name, self.status, self.reason, cost_the_process=cost)


class RemoteRunner:
    """The driver's side of a device's actor, which it starts again when it dies."""

    def __init__(self, device: Device, threads: int, deadlines: Deadlines) -> None:
        self._device, self._threads, self._deadlines = device, threads, deadlines
        self._actor: Any = None

    def start(self) -> None:
        """Start the actor, so that importing torch does not fall into a timing.

        Raises:
            FlytuneError: it cannot start.
        """
        self._or_give_up("the device's process cannot start", "ready")

    def start_soon(self) -> None:
        """Let the actor start while the caller does other things."""
        if self._actor is None:
            self._actor = self._start()

    def stop(self) -> None:
        """End the actor, if there is one, and give back what it holds."""
        self._kill()

    def ceilings(self, types: Mapping[str, str]) -> dict[str, Any]:
        """Return what the device reaches at most, as `measure_ceilings` does.

        Empty where it could not be measured: no build fails for it.

        Raises:
            FlytuneError: Ray itself fails, or the disk is full.
        """
        try:
            found: dict[str, Any] = self._call(
                "ceilings", self._deadlines.measure_s, dict(types)
            )
        except RunnerDiedError:
            return {}
        return found

    def run(
        self, task: TuneTask, built: Sequence[BuildResult], plan: TimingPlan
    ) -> tuple[RunResult, ...]:
        """Return one result a candidate, in the order of `built`.

        Raises:
            FlytuneError: the actor dies before any candidate has run, Ray itself fails,
            or the disk is full.
        """
        start = time.monotonic()
        results = self._run(task, built, plan)
        batch_s = round(time.monotonic() - start, 3)
        return tuple(replace(result, batch_s=batch_s) for result in results)

    def _run(
        self, task: TuneTask, built: Sequence[BuildResult], plan: TimingPlan
    ) -> tuple[RunResult, ...]:
        results = self._check_all(task, built)
        alive = [r.choice_hash for r in results.values() if r.status is Status.OK]
        if alive:
            results |= self._measure(task, built, alive, plan)
        return tuple(results[b.choice_hash] for b in built)

    def _check_all(
        self, task: TuneTask, built: Sequence[BuildResult]
    ) -> dict[str, RunResult]:
        """Check each candidate; one that kills the actor is left out of a new one."""
        dead: dict[str, RunResult] = {}
        while True:
            self._begin(task)
            results = dict(dead)
            for build_result in built:
                name = build_result.choice_hash
                if name in dead:
                    continue
                try:
                    results[name] = self._call(
                        "check", self._deadlines.check_s, build_result
                    )
                except RunnerDiedError as error:
                    dead[name] = error.of(name)
                    break
            else:
                return results

    def _measure(
        self,
        task: TuneTask,
        built: Sequence[BuildResult],
        alive: Sequence[str],
        plan: TimingPlan,
    ) -> dict[str, RunResult]:
        """Time together; when that kills the actor, find out which one does."""
        try:
            return self._measured(alive, plan)
        except RunnerDiedError as error:
            if len(alive) == 1:
                only = alive[0]
                return {only: error.of(only)}
        results: dict[str, RunResult] = {}
        by_name = {b.choice_hash: b for b in built}
        for name in alive:
            one = self._run(task, [by_name[name]], plan)
            results[name] = one[0]
        fine = [by_name[name] for name in alive if results[name].status is Status.OK]
        if len(fine) > 1:
            results |= self._measure_again(task, fine, plan)
        return results

    def _measure_again(
        self, task: TuneTask, built: Sequence[BuildResult], plan: TimingPlan
    ) -> dict[str, RunResult]:
        """Time together, once, what was well alone: only such times can be compared."""
        results = self._check_all(task, built)
        alive = [r.choice_hash for r in results.values() if r.status is Status.OK]
        if not alive:
            return results
        try:
            return results | self._measured(alive, plan)
        except RunnerDiedError as error:
            reason = f"well alone, but timed with the others: {error.reason}"
            unstable = Status.UNSTABLE
            return results | {n: RunResult(n, unstable, reason) for n in alive}

    def _measured(self, names: Sequence[str], plan: TimingPlan) -> dict[str, RunResult]:
        measured = self._call("measure", self._deadlines.measure_s, names, plan)
        return {result.choice_hash: result for result in measured}

    def _begin(self, task: TuneTask) -> None:
        what = f"the device's process died before a candidate ran: {task.shape}"
        self._or_give_up(what, "begin", task)

    def _or_give_up(self, what: str, method: str, *args: Any) -> None:
        try:
            self._call(method, self._deadlines.begin_s, *args)
        except RunnerDiedError as error:
            raise FlytuneError(
                f"{what}: {error.reason}",
                hint="too little free memory is the usual cause",
            ) from error

    def _call(self, method: str, deadline_s: float, *args: Any) -> Any:
        import ray

        self.start_soon()
        try:
            result = ray.get(
                getattr(self._actor, method).remote(*args), timeout=deadline_s
            )
        except ray.exceptions.GetTimeoutError as error:
            self._kill()
            raise RunnerDiedError(
                Status.TIMEOUT, f"no result in {deadline_s:g} s", killed=True
            ) from error
        except ray.exceptions.RayTaskError as error:
            # A kernel raised while it was timed; the process may be as well as before.
            status, reason = failure(error.cause, Status.FAULT)
            if lost := isinstance(error.cause, DeviceLostError):
                self._kill()
                status, reason = Status.FAULT, str(error.cause)
            refuse_full_disk(reason)
            raise RunnerDiedError(status, reason, killed=lost) from error
        except ray.exceptions.OutOfMemoryError as error:
            self._kill()
            words = "out of memory"
            raise RunnerDiedError(Status.OUT_OF_MEMORY, words, killed=True) from error
        except (
            ray.exceptions.RayActorError,
            ray.exceptions.WorkerCrashedError,
        ) as error:
            self._kill()
            reason = _death(error)
            refuse_full_disk(reason)
            raise RunnerDiedError(Status.FAULT, reason, killed=True) from error
        except ray.exceptions.RayError as error:
            self._kill()
            raise ray_failed("time", error) from error
        if isinstance(result, RunResult):
            refuse_full_disk(result.reason)
        return result

    def _start(self) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        env = {"env_vars": {"OMP_NUM_THREADS": str(self._threads)}}
        if self._device.kind != "cpu":
            # No core: it lives on, and builds on a host with few would wait for it.
            make = ray.remote(num_cpus=0, num_gpus=1, max_restarts=0)(_RunnerActor)
            return make.options(runtime_env=env).remote(self._device)
        # On this host, which the bundle is for, and on all of its cores: nothing else
        # of ours may run while the device is timed.
        node, cores = own_cores(self._threads)
        make = ray.remote(num_cpus=cores, max_restarts=0)(_RunnerActor)
        return make.options(
            runtime_env=env,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(self._device)

    def _kill(self) -> None:
        import ray

        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None


def _death(error: Exception) -> str:
    """Say how the device's process died; one that could not start says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "creation task" in str(error):
        return f"it cannot start: {lines[-1]}"
    return "the device's process died"
