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
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.device_process import (
    DeviceGoneError,
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
        expected: Target | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            threads: Of OpenMP, in its process.
            node: Where an accelerator is, by Ray's name; None: wherever there is one.
            make: Makes the runner.
            expected: As `kernel_target` on the driver's host, where nodes may join.
        """
        self._deadlines = deadlines
        given = (device, threads, deadlines.begin_s, node, make, expected)
        self._process = DeviceProcess(*given)

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
        """End the actor, if there is one, and give back what it holds, for good."""
        self._process.close()

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
        except (DeviceGoneError, RunnerDiedError):
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
        results, died = self._raced(task, built, plan)
        if died is not None:
            results |= self._found_out(task, _well(built, results), plan, died)
        return tuple(results[b.choice_hash] for b in built)

    def _raced(
        self, task: TuneTask, built: Sequence[BuildResult], plan: TimingPlan
    ) -> tuple[dict[str, RunResult], RunnerDiedError | None]:
        """Check candidates and time those that are well together.

        Where somebody else may have killed the process all is done again.

        Returns:
            What became of them, and the death that one of the well ones is to blame
            for; None where they have times.
        """
        results: dict[str, RunResult] = {}
        died = None
        for _ in range(_MOST_DEATHS):
            results |= self._check_all(task, built)
            built = _well(built, results)
            names = [build.choice_hash for build in built]
            try:
                return results | (self._measured(names, plan) if names else {}), None
            except RunnerDiedError as error:
                died = error
                if not error.doubtful:
                    break
        return results, died

    def _found_out(
        self,
        task: TuneTask,
        built: Sequence[BuildResult],
        plan: TimingPlan,
        died: RunnerDiedError,
    ) -> dict[str, RunResult]:
        """Find out which of several kills the process when they are timed.

        What was well alone is timed together once more: only such times can be
        compared.
        """
        if len(built) == 1:
            name = built[0].choice_hash
            return {name: died.of(name)}
        results: dict[str, RunResult] = {}
        for build in built:
            alone, killed = self._raced(task, [build], plan)
            name = build.choice_hash
            results[name] = alone[name] if killed is None else killed.of(name)
        fine = _well(built, results)
        if len(fine) > 1:
            together, killed = self._raced(task, fine, plan)
            results |= together
            if killed is not None:
                reason = f"well alone, but timed with the others: {killed.reason}"
                for name in (build.choice_hash for build in _well(fine, together)):
                    results[name] = RunResult(name, Status.UNSTABLE, reason)
        return results

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


def _well(
    built: Sequence[BuildResult], results: Mapping[str, RunResult]
) -> list[BuildResult]:
    return [b for b in built if results[b.choice_hash].status is Status.OK]


def _together(left: Sequence[BuildResult], alone: set[str]) -> Sequence[BuildResult]:
    """Return the builds that are checked in the next call, the first among them."""
    if left[0].choice_hash in alone:
        return left[:1]
    return tuple(
        itertools.takewhile(
            lambda build: build.choice_hash not in alone, left[:_MOST_TOGETHER]
        )
    )
