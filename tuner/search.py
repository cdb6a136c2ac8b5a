"""Stages 3 to 5: build the candidates, time them, and choose.

What is finished is on disk before the next begins; what is there is not done again.
"""

import functools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from flytune.caches.columns import Status
from flytune.caches.policy import uses_flydsl
from flytune.caches.recorded import RecordedTime
from flytune.caches.records import TuningRecord
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import ATEN, BuildResult, Candidate, TuneTask
from flytune.tuner.decision import Decision, decide, lone
from flytune.tuner.journal import Journal
from flytune.tuner.options import BuildOptions
from flytune.tuner.overlap import Timed, timed_while_building
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress, Stage
from flytune.tuner.quarantine import NAME, Quarantine, was_refused
from flytune.tuner.recall import BuiltKernels, Recall
from flytune.tuner.recorded_runner import RecordedRunner, only, untimed
from flytune.tuner.remote_runner import RemoteRunner
from flytune.tuner.runner import Device
from flytune.tuner.timed_device import device_of
from flytune.tuner.workers import Farm

# Cores that may be missing before a warning: an idle host's own work takes as much.
_SPARE_CORES = 0.5
_WATCH_S = 0.5
_PATIENCE_S = 15.0

StartFarm = Callable[[], Farm]
"""Returns the workers, the same at each call; the first may start them."""


class Searched(NamedTuple):
    """What a search found."""

    decisions: tuple[Decision, ...]
    ceilings: Mapping[str, Any]
    """As `measure_ceilings`; empty where nothing was timed."""


def search(
    plan: Plan,
    tasks: Sequence[TuneTask],
    options: BuildOptions,
    journal: Journal,
    older: Iterable[TuningRecord],
    start: StartFarm,
    progress: Progress,
) -> Searched:
    """Return a decision for every task, in their order, and what the device can do.

    Args:
        start: Called where something is to be built or timed.
        older: Records of an earlier bundle for the same target, taken where they are
            of the very same list.

    Raises:
        FlytuneError: a list has no candidate that survives, or Ray cannot be had.
    """
    recall = Recall(journal, older)
    alone = [t for t in tasks if len(t.offered.candidates) == 1]
    choices = [t for t in tasks if len(t.offered.candidates) > 1]
    decided = {task.offered.key: lone(task) for task in alone}
    device = device_of(plan)
    quarantine = Quarantine(options.work / NAME, device.name, options.exclude)
    for task in choices:
        decision = recall.decision(task)
        if decision is not None and _stands(decision, quarantine.refusals(task)):
            decided[task.offered.key] = decision
    waiting = [task for task in choices if task.offered.key not in decided]
    progress.say(
        f"tune: {len(waiting)} lists to time, {len(choices) - len(waiting)} known "
        f"from earlier work, {len(alone)} with one candidate and no choice"
    )
    if recall.unreadable:
        progress.say(f"tune: passed over {recall.unreadable} unreadable journal rows")
    if waiting:
        profile = plan.profile
        work = _Work(start(), plan, options, progress, quarantine)
        time_all = work.one_after_other if profile is None else work.overlapped
        for task, builds, results in time_all(waiting, device):
            # On a CPU a process is all that a candidate can cost.
            new = () if profile is None else quarantine.add(task, results)
            for name in new:
                progress.say(f"time: quarantined for later runs too: {name}")
            decision = decide(task, builds, results).decided_at(progress.elapsed_s)
            recall.keep(decision)
            decided[task.offered.key] = decision
        recall.keep_ceilings(work.ceilings(waiting))
    decisions = tuple(decided[task.offered.key] for task in tasks)
    return Searched(decisions, recall.ceilings)


def farm_for(plan: Plan, options: BuildOptions) -> Farm:
    """Return the workers of a build, which start with their context."""
    return Farm(
        options.ray,
        plan.policy.env,
        options.deadlines,
        plan.profile,
        flydsl=uses_flydsl(plan.policy),
    )


def _stands(decision: Decision, refused: Collection[str]) -> bool:
    """Whether an earlier decision is one that this run could make.

    What may not be tried now has no time in it, and what might not be tried then still
    may not.
    """
    timed = {r.choice_hash for r in decision.records if r.status is Status.OK}
    kept_out = {r.choice_hash for r in decision.records if was_refused(r.reason)}
    return timed.isdisjoint(refused) and kept_out <= set(refused)


def compile_all(
    plan: Plan,
    tasks: Sequence[TuneTask],
    options: BuildOptions,
    start: StartFarm,
    progress: Progress,
) -> Mapping[str, BuildResult]:
    """Build every candidate of every list, by choice hash, and time none.

    Raises:
        FlytuneError: Ray cannot be had.
    """
    device = device_of(plan).name
    quarantine = Quarantine(options.work / NAME, device, options.exclude)
    return _Work(start(), plan, options, progress, quarantine).built(tasks)


def decide_recorded(
    plan: Plan,
    tasks: Sequence[TuneTask],
    options: BuildOptions,
    times: Iterable[RecordedTime],
    start: StartFarm,
    progress: Progress,
) -> tuple[tuple[Decision, ...], Mapping[str, BuildResult]]:
    """Decide by recorded times; build what has one, and nothing else.

    Returns:
        The decisions, in the order of the tasks, and what was built.

    Raises:
        FlytuneError: no list has a time, one has no candidate that was built, or Ray
            cannot be had.
    """
    runner = RecordedRunner(times)
    timed = [runner.timed(task) for task in tasks]
    if not any(timed):
        raise FlytuneError(
            f"no list of this build has a recorded time: {options.recorded}",
            hint="compile its candidates alone with --compile-only",
        )
    wanted = [only(task, names) for task, names in zip(tasks, timed, strict=True)]
    progress.say(
        f"tune: {sum(map(bool, timed))} of {len(tasks)} lists have recorded times"
    )
    built = compile_all(plan, wanted, options, start, progress)
    decisions = []
    for task in tasks:
        builds = [
            built.get(c.choice_hash, untimed(c.choice_hash))
            for c in task.offered.candidates
        ]
        decisions.append(decide(task, builds, runner.run(task, builds)))
    return tuple(decisions), built


class _Work:
    """Builds and times lists with the workers of one farm."""

    def __init__(
        self,
        farm: Farm,
        plan: Plan,
        options: BuildOptions,
        progress: Progress,
        quarantine: Quarantine,
    ) -> None:
        self._farm, self._store = farm, BuiltKernels(plan.work / "built")
        self._options, self._progress = options, progress
        self._quarantine = quarantine
        self._runners: tuple[RemoteRunner, ...] = ()

    def ceilings(self, tasks: Sequence[TuneTask]) -> Mapping[str, Any]:
        """Return what the first device that has timed reaches at most."""
        dtypes = {task.shape.a_dtype for task in tasks}
        return self._runners[0].ceilings(sorted(dtypes))

    def one_after_other(
        self, tasks: Sequence[TuneTask], device: Device
    ) -> Iterator[Timed]:
        """Build all, and then time: on a CPU both would take the same cores."""
        built = self.built(tasks)
        self._runners = self._farm.runners(device, self._options.threads)
        (runner,) = self._runners
        runner.start()
        if warning := _until_quiet(self._options.threads):
            self._progress.say(warning)
        with self._progress.stage("time", len(tasks)) as stage:
            for task in tasks:
                builds = tuple(built[c.choice_hash] for c in task.offered.candidates)
                results = runner.run(task, builds, self._options.timing)
                yield Timed(task, builds, results)
                stage.advance(str(task.shape))

    def built(self, tasks: Sequence[TuneTask]) -> Mapping[str, BuildResult]:
        """Build each distinct kernel once, but what is stored."""
        built, groups = self._stored(tasks)
        with self._progress.stage("build", len(groups)) as stage:
            for result in self._building(groups, stage):
                if result is not None:
                    built[result.choice_hash] = result
        return built

    def overlapped(self, tasks: Sequence[TuneTask], device: Device) -> Iterator[Timed]:
        """Time on every accelerator of the cluster what is built by then."""
        built, groups = self._stored(tasks)
        self._runners = self._farm.runners(device, threads=1)
        for runner in self._runners:
            # Its first list will find it there.
            runner.start_soon()
        plan = self._options.timing
        runs = [functools.partial(r.run, plan=plan) for r in self._runners]
        with self._progress.stage("tune", len(groups) + len(tasks)) as stage:
            building = self._building(groups, stage)
            for timed in timed_while_building(tasks, built, building, runs):
                if any(result.disturbed for result in timed.results):
                    now = self._farm.throttle()
                    self._progress.say(f"time: disturbed; {now} builds at once now")
                yield timed
                stage.advance(str(timed.task.shape))

    def _building(
        self, groups: Sequence[Sequence[Candidate]], stage: Stage
    ) -> Iterator[BuildResult | None]:
        """Compile one candidate of each group, and give all of it what came of it."""
        group_of = {group[0].choice_hash: group for group in groups}
        for result in self._farm.build_all([group[0] for group in groups]):
            if result is None:
                yield None
                continue
            first, *others = group_of[result.choice_hash]
            # On disk before it is told of.
            self._store.keep(result, first.build_key)
            stage.advance(result.reason)
            yield result
            for other in others:
                yield replace(result, choice_hash=other.choice_hash)

    def _stored(
        self, tasks: Sequence[TuneTask]
    ) -> tuple[dict[str, BuildResult], list[list[Candidate]]]:
        """Return what needs no building, and what does: groups of one kernel each."""
        candidates = {c.choice_hash: c for t in tasks for c in t.offered.candidates}
        built: dict[str, BuildResult] = {}
        for task in tasks:
            built |= self._quarantine.refusals(task)
        groups: dict[str, list[Candidate]] = {}
        for name, one in candidates.items():
            if name in built:
                continue
            if one.backend == ATEN:
                built[name] = BuildResult(name, Status.OK)
            elif (stored := self._store.find(name, one.build_key)) is not None:
                built[name] = stored
            else:
                groups.setdefault(one.build_key or name, []).append(one)
        return built, list(groups.values())


def crowded(busy: Sequence[float], threads: int) -> str:
    """Return a warning when others leave too few cores free for `threads`, or nothing.

    An OpenMP kernel ends with its slowest thread: one core taken makes times hundreds
    of times too long, and of what they are made the choice is.

    Args:
        busy: The share of each core that others use, 0 to 1.
    """
    taken = sum(busy)
    if len(busy) - taken >= threads - _SPARE_CORES:
        return ""
    return (
        f"time: warning: other processes use {taken:.1f} of {len(busy)} cores, and "
        f"{threads} threads are timed: wait until they end, or times mean little"
    )


def _until_quiet(threads: int) -> str:
    """Wait for the cores that timing needs; return a warning if others keep them.

    What Ray and the builders still do when the last build has ended passes by itself.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while warning := crowded(_busy_cores(), threads):
        if time.monotonic() > deadline:
            return warning
    return ""


def _busy_cores() -> tuple[float, ...]:
    """Return the share of each of this process's cores that is in use just now."""
    import psutil

    shares = psutil.cpu_percent(interval=_WATCH_S, percpu=True)
    own = os.sched_getaffinity(0)
    return tuple(share / 100 for core, share in enumerate(shares) if core in own)
