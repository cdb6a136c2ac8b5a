"""The Ray workers: a task a compilation, an actor a device.

Worker processes live on between tasks, because importing torch costs seconds; one that
dies or hangs costs the candidate that it held, and that becomes a result.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flytune.caches.records import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.builder import build
from flytune.tuner.candidate import (
    BuildResult,
    Candidate,
    RunResult,
    TuneTask,
    failure,
)
from flytune.tuner.cluster import joined, own_cores, worker_directory
from flytune.tuner.runner import CpuRunner, Device
from flytune.tuner.timing import TimingPlan


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the driver waits before it kills a worker."""

    build_s: float = 300.0
    begin_s: float = 300.0
    """Of starting the device's process and making a task's operands."""
    check_s: float = 300.0
    """Of checking one candidate: packing a head takes tens of seconds."""
    measure_s: float = 600.0


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
        """
        import ray

        remote = ray.remote(num_cpus=1, max_retries=0)(_build_in_worker)
        waiting = list(reversed(candidates))
        running: dict[Any, tuple[str, float]] = {}
        slots = max(1, int(ray.cluster_resources().get("CPU", 1)))
        while waiting or running:
            while waiting and len(running) < slots:
                candidate = waiting.pop()
                running[remote.remote(candidate)] = (
                    candidate.choice_hash,
                    time.monotonic() + self._deadlines.build_s,
                )
            done, _ = ray.wait(list(running), num_returns=1, timeout=1.0)
            for reference in done:
                name, _ = running.pop(reference)
                yield _result_of(reference, name)
            for reference, (name, deadline) in list(running.items()):
                if time.monotonic() > deadline:
                    ray.cancel(reference, force=True)
                    del running[reference]
                    seconds = self._deadlines.build_s
                    yield BuildResult(name, Status.TIMEOUT, f"no result in {seconds} s")

    def runner(self, device: Device, threads: int) -> "RemoteRunner":
        """Return the handle of a device's actor, started at its first use."""
        return RemoteRunner(device, threads, self._deadlines)


_WORKER_ENV = {
    # The candidates were listed under this instruction set: building needs no probe.
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "HF_HUB_OFFLINE": "1",
}


def _build_in_worker(candidate: Candidate) -> BuildResult:
    _own_cache_directory()
    return build(candidate)


def _own_cache_directory() -> None:
    """Give this worker process an Inductor directory that it shares with nobody."""
    if os.environ.get("FLYTUNE_WORKER") != str(os.getpid()):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(worker_directory())
        os.environ["FLYTUNE_WORKER"] = str(os.getpid())


def _result_of(reference: Any, name: str) -> BuildResult:
    import ray

    try:
        result: BuildResult = ray.get(reference)
        return result
    except ray.exceptions.OutOfMemoryError:
        return BuildResult(name, Status.OUT_OF_MEMORY, "the worker ran out of memory")
    except ray.exceptions.WorkerCrashedError:
        return BuildResult(name, Status.FAULT, "the compiling process died")
    except ray.exceptions.RayError as error:
        first = str(error).partition("\n")[0]
        return BuildResult(name, Status.FAULT, f"{type(error).__name__}: {first}")


class _RunnerActor:
    """The actor's side: a runner in a process of its own."""

    def __init__(self, device: Device) -> None:
        _own_cache_directory()
        self._runner = CpuRunner(device)

    def ready(self) -> None:
        """Return once the process has torch and its ledger."""

    def begin(self, task: TuneTask) -> None:
        self._runner.begin(task)

    def check(self, build_result: BuildResult) -> RunResult:
        return self._runner.check(build_result)

    def measure(self, names: Sequence[str], plan: TimingPlan) -> tuple[RunResult, ...]:
        return self._runner.measure(names, plan)


class RunnerDiedError(Exception):
    """The actor died or outlasted its deadline; says how, in a status and words."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


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

    def run(
        self, task: TuneTask, built: Sequence[BuildResult], plan: TimingPlan
    ) -> tuple[RunResult, ...]:
        """Return one result a candidate, in the order of `built`.

        Raises:
            FlytuneError: the actor dies before any candidate has run.
        """
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
                    dead[name] = RunResult(name, error.status, error.reason)
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
                return {only: RunResult(only, error.status, error.reason)}
        results: dict[str, RunResult] = {}
        by_name = {b.choice_hash: b for b in built}
        for name in alive:
            one = self.run(task, [by_name[name]], plan)
            results[name] = one[0]
        together = [name for name in alive if results[name].status is Status.OK]
        if len(together) > 1 and len(together) < len(alive):
            self._check_all(task, [by_name[name] for name in together])
            results |= self._measure(task, built, together, plan)
        return results

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

        if self._actor is None:
            self._actor = self._start()
        try:
            return ray.get(
                getattr(self._actor, method).remote(*args), timeout=deadline_s
            )
        except ray.exceptions.GetTimeoutError as error:
            self._kill()
            raise RunnerDiedError(
                Status.TIMEOUT, f"no result in {deadline_s:g} s"
            ) from error
        except ray.exceptions.RayTaskError as error:
            # A kernel raised while it was timed; the process is as well as before.
            raise RunnerDiedError(*failure(error.cause, Status.FAULT)) from error
        except ray.exceptions.OutOfMemoryError as error:
            self._kill()
            raise RunnerDiedError(Status.OUT_OF_MEMORY, "out of memory") from error
        except ray.exceptions.RayError as error:
            self._kill()
            raise RunnerDiedError(Status.FAULT, _death(error)) from error

    def _start(self) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # On this host, which the bundle is for, and on all of its cores: nothing else
        # of ours may run while the device is timed.
        node, cores = own_cores(self._threads)
        make = ray.remote(num_cpus=cores, max_restarts=0)(_RunnerActor)
        return make.options(
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(self._threads)}},
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
