"""The driver's side of a device: which candidate is at fault where its process dies.

A candidate that kills or hangs the process costs that candidate alone, and becomes a
result.
"""

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flytune.caches.records import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.device_process import (
    DeviceProcess,
    MakeRunner,
    RunnerDiedError,
    local_runner,
)
from flytune.tuner.runner import Device
from flytune.tuner.timing import TimingPlan

# Candidates whose kernels travel to the process together.
_MOST_TOGETHER = 16
# Of the process, that prove a candidate at fault: others may kill it too.
_MOST_DEATHS = 2


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
        self._deadlines = deadlines
        self._process = DeviceProcess(device, threads, deadlines.begin_s, node, make)

    def start(self) -> None:
        """Start the actor, so that importing torch does not fall into a timing.

        Raises:
            FlytuneError: it cannot start.
        """
        self._or_give_up("the device's process cannot start", "here")

    def start_soon(self) -> None:
        """Let the actor start while the caller does other things."""
        self._process.start()

    def stop(self) -> None:
        """End the actor, if there is one, and give back what it holds."""
        self._process.kill()

    def ceilings(self, types: Mapping[str, str]) -> dict[str, Any]:
        """Return what the device reaches at most, as `measure_ceilings` does.

        Empty where it could not be measured: no build fails for it.

        Raises:
            FlytuneError: Ray itself fails, or the disk is full.
        """
        try:
            found: dict[str, Any] = self._process.call(
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
                    checked = self._process.call(
                        "check", self._deadlines.check_s, together
                    )
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
        measured = self._process.call("measure", self._deadlines.measure_s, names, plan)
        return {result.choice_hash: result for result in measured}

    def _begin(self, task: TuneTask) -> None:
        what = f"the device's process died before a candidate ran: {task.shape}"
        self._or_give_up(what, "begin", task)

    def _or_give_up(self, what: str, method: str, *args: Any) -> None:
        for attempt in range(1, _MOST_DEATHS + 1):
            try:
                self._process.call(method, self._deadlines.begin_s, *args)
            except RunnerDiedError as error:
                if error.doubtful and attempt < _MOST_DEATHS:
                    continue
                raise FlytuneError(
                    f"{what}: {error.reason}",
                    hint="too little free memory is the usual cause",
                ) from error
            return


def _together(left: Sequence[BuildResult], alone: set[str]) -> Sequence[BuildResult]:
    """Return the builds that are checked in the next call, the first among them."""
    if left[0].choice_hash in alone:
        return left[:1]
    return tuple(
        itertools.takewhile(
            lambda build: build.choice_hash not in alone, left[:_MOST_TOGETHER]
        )
    )
