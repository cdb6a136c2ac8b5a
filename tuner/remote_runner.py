"""The actor that runs candidates on a device, and the driver's side of it.

It lives on between tasks, because importing torch costs seconds; a candidate that kills
or hangs it costs that candidate alone, and becomes a result.
"""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
    require_head,
)
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.runner import Device, DeviceLostError, Runner
from flytune.tuner.timing import TimingPlan
from flytune.tuner.vendors import VENDORS

MakeRunner = Callable[[Device], Runner]
"""Makes the runner of a device, in its actor's process."""

_TELL_S = 1.0
# Candidates whose kernels travel to the actor together.
_MOST_TOGETHER = 16
# Of the actor, that prove a candidate at fault: others may kill it too.
_MOST_DEATHS = 2
_DIED = "the device's process died"
_POLL_S = 1.0


class _RunnerActor:
    """The actor's side: a runner in a process of its own."""

    def __init__(self, device: Device, make: MakeRunner) -> None:
        own_cache_directory()
        self._kind = device.kind
        self._runner = make(device)

    def ready(self) -> None:
        """Return once the process has torch and its ledger."""

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
        return measure_ceilings(self._kind, types)


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


class RemoteRunner:
    """The driver's side of a device's actor, which it starts again when it dies."""

    def __init__(
        self,
        device: Device,
        threads: int,
        deadlines: Deadlines,
        node: str | None = None,
        make: MakeRunner = local_runner,
    ) -> None:
        """Start nothing yet.

        Args:
            threads: Of OpenMP, in its process.
            node: Where an accelerator is, by Ray's name; None: wherever there is one.
            make: Makes the runner.
        """
        self._device, self._threads, self._deadlines = device, threads, deadlines
        self._node, self._make = node, make
        self._actor: Any = None
        self._placed = False

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
        """Check each candidate; one that kills the actor is left out of a new one.

        Several are checked in one call. Where it fails each of them has its own.
        """
        dead: dict[str, RunResult] = {}
        deaths: Counter[str] = Counter()
        alone: set[str] = set()
        while True:
            self._begin(task)
            results = dict(dead)
            left = [build for build in built if build.choice_hash not in dead]
            while left:
                together = _together(left, alone)
                try:
                    checked = self._call("check", self._deadlines.check_s, together)
                except RunnerDiedError as error:
                    name, *others = (build.choice_hash for build in together)
                    if others:
                        alone.update((name, *others))
                        break
                    deaths[name] += 1
                    if not error.doubtful or deaths[name] == _MOST_DEATHS:
                        dead[name] = error.of(name)
                    break
                results |= {result.choice_hash: result for result in checked}
                left = left[len(checked) :]
            else:
                return results

    def _measure(
        self,
        task: TuneTask,
        built: Sequence[BuildResult],
        alive: Sequence[str],
        plan: TimingPlan,
    ) -> dict[str, RunResult]:
        """Time together; when that kills the actor, find out which one does.

        Where somebody else may have killed it, all are timed again before.
        """
        by_name = {b.choice_hash: b for b in built}
        results: dict[str, RunResult] = {}
        for attempt in range(_MOST_DEATHS):
            if attempt:
                results |= self._check_all(task, [by_name[name] for name in alive])
                alive = [name for name in alive if results[name].status is Status.OK]
            try:
                return results | (self._measured(alive, plan) if alive else {})
            except RunnerDiedError as error:
                died = error
                if not error.doubtful:
                    break
        if len(alive) == 1:
            return results | {alive[0]: died.of(alive[0])}
        for name in alive:
            results[name] = self._alone(task, by_name[name], plan)
        fine = [by_name[name] for name in alive if results[name].status is Status.OK]
        if len(fine) > 1:
            results |= self._measure_again(task, fine, plan)
        return results

    def _alone(self, task: TuneTask, build: BuildResult, plan: TimingPlan) -> RunResult:
        """Check and time one candidate by itself."""
        results = self._check_all(task, [build])
        name = build.choice_hash
        if results[name].status is not Status.OK:
            return results[name]
        try:
            return self._measured([name], plan)[name]
        except RunnerDiedError as error:
            return error.of(name)

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
        for attempt in range(1, _MOST_DEATHS + 1):
            try:
                self._call(method, self._deadlines.begin_s, *args)
            except RunnerDiedError as error:
                if error.doubtful and attempt < _MOST_DEATHS:
                    continue
                raise FlytuneError(
                    f"{what}: {error.reason}",
                    hint="too little free memory is the usual cause",
                ) from error
            return

    def _call(self, method: str, deadline_s: float, *args: Any) -> Any:
        import ray

        self.start_soon()
        try:
            self._await_resources()
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
            doubtful = reason == _DIED
            raise RunnerDiedError(
                Status.FAULT, reason, killed=True, doubtful=doubtful
            ) from error
        except (
            ray.exceptions.ActorUnschedulableError,
            ray.exceptions.NodeDiedError,
        ) as error:
            self._kill()
            if self._node is None:
                raise ray_failed("time", error) from error
            raise DeviceGoneError(f"a device's node has left: {self._node}") from error
        except ray.exceptions.RayError as error:
            self._kill()
            raise ray_failed("time", error) from error
        if method == "check":
            for one in result:
                refuse_full_disk(one.reason)
        return result

    def _await_resources(self) -> None:
        """Wait until the actor has what it needs; others may use the cluster.

        The deadlines of its calls count from then.
        """
        import ray

        if self._placed:
            return
        ready = self._actor.ready.remote()
        seconds = 0.0
        while seconds < self._deadlines.begin_s:
            done, _ = ray.wait([ready], timeout=_POLL_S)
            if done:
                ray.get(ready)
                self._placed = True
                return
            require_head()
            seconds += _POLL_S if self._has_room() else 0.0
        raise ray.exceptions.GetTimeoutError

    def _has_room(self) -> bool:
        """Whether the actor need not wait for what others hold."""
        import ray

        free = ray.available_resources()
        return all(
            free.get(name, 0) >= number for name, number in self._needs().items()
        )

    def _needs(self) -> dict[str, float]:
        """Return what Ray must have free for the actor, by Ray's names."""
        if self._device.kind != "cpu":
            return {"GPU": 1}
        return {"CPU": own_cores(self._threads)[1]}

    def _start(self) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

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
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            options["scheduling_strategy"] = strategy
        make = ray.remote(num_cpus=cores, num_gpus=gpus, max_restarts=0)(_RunnerActor)
        return make.options(**options).remote(self._device, self._make)

    def _kill(self) -> None:
        import ray

        if self._actor is not None:
            ray.kill(self._actor)
            self._actor, self._placed = None, False


def _together(left: Sequence[BuildResult], alone: set[str]) -> Sequence[BuildResult]:
    """Return the builds that are checked in the next call, the first among them."""
    if left[0].choice_hash in alone:
        return left[:1]
    return tuple(
        itertools.takewhile(
            lambda build: build.choice_hash not in alone, left[:_MOST_TOGETHER]
        )
    )


def _death(error: Exception) -> str:
    """Say how the device's process died; one that could not start says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "creation task" in str(error):
        return f"it cannot start: {lines[-1]}"
    return _DIED
