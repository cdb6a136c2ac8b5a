"""What builds candidates and times lists: the workers of one farm, put to use."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flytune.caches.columns import Status
from flytune.caches.policy import uses_flydsl
from flytune.caches.report.work import type_of
from flytune.tuner.built_kernels import BuiltKernels
from flytune.tuner.candidate import ATEN, BuildResult, Candidate, TuneTask
from flytune.tuner.options import BuildOptions
from flytune.tuner.overlap import DevicePool, Run, Timed, timed_while_building
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress, Stage
from flytune.tuner.quarantine import Quarantine
from flytune.tuner.quiet import until_quiet
from flytune.tuner.remote_runner import RemoteRunner
from flytune.tuner.timed_device import device_of
from flytune.tuner.workers import Farm

StartFarm = Callable[[], Farm]
"""Returns the workers, the same at each call; the first may start them."""


def farm_for(plan: Plan, options: BuildOptions) -> Farm:
    """Return the workers of a build, which start with their context."""
    return Farm(
        options.ray,
        plan.policy.env,
        options.deadlines,
        plan.profile,
        flydsl=uses_flydsl(plan.policy),
    )


class Work:
    """Builds and times lists with the workers of one farm."""

    def __init__(
        self,
        farm: Farm,
        plan: Plan,
        options: BuildOptions,
        progress: Progress,
        quarantine: Quarantine,
        stop: Callable[[], bool] = lambda: False,
        hold: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Take the workers of a farm.

        Args:
            hold: Told how many accelerators there are, which come and go.
            stop: Once it says True no list and no candidate is begun: lists that are
                not timed by then are not yielded.
        """
        self._stop, self._hold = stop, hold
        self._farm, self._store = farm, BuiltKernels(plan.work / "built")
        self._plan = plan
        self._options, self._progress = options, progress
        self._quarantine = quarantine
        self._runners: tuple[RemoteRunner, ...] = ()
        self._pool: DevicePool | None = None

    def ceilings(self, tasks: Sequence[TuneTask]) -> Mapping[str, Any]:
        """Return what the first device that is left reaches; nothing if none is."""
        types = {type_of(task.shape): task.shape.a_dtype for task in tasks}
        measured = (runner.ceilings(types) for runner in self._runners)
        return next(filter(None, measured), {})

    def timed(self, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        """Yield every list once it is built and timed, in no order.

        Args:
            tasks: The first are built first.
        """
        if self._plan.profile is None:
            # A process is all that a candidate can cost.
            yield from self._one_after_other(tasks)
            return
        for timed in self._overlapped(tasks):
            for name in self._quarantine.add(timed.task, timed.results):
                self._progress.say(f"time: quarantined for later runs too: {name}")
            yield timed

    def _one_after_other(self, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        """Build all, and then time: on a CPU both would take the same cores."""
        built = self.built(tasks)
        tasks = [task for task in tasks if built.keys() >= _names(task)]
        if not tasks:
            return
        (runner,) = self._devices(self._options.threads)
        runner.start()
        if warning := until_quiet(self._options.threads):
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

    def _overlapped(self, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        """Time on every accelerator of the cluster what is built by then."""
        built, groups = self._stored(tasks)
        if self._pool is None:
            devices = self._devices(threads=1)
            self._pool = DevicePool(self._runs(devices), self._joined)
        with self._progress.stage("tune", len(groups) + len(tasks)) as stage:
            building = self._building(groups, stage)
            given = (tasks, built, building, self._pool, self._stop)
            for timed in timed_while_building(*given):
                if any(result.disturbed for result in timed.results):
                    now = self._farm.throttle()
                    self._progress.say(f"time: disturbed; {now} builds at once now")
                yield timed
                stage.advance(str(timed.task.shape))

    def _runs(self, runners: Iterable[RemoteRunner]) -> Iterator[Run]:
        for runner in runners:
            # Its first list will find it there.
            runner.start_soon()
            yield functools.partial(runner.run, plan=self._options.timing)

    def _joined(self) -> Iterable[Run]:
        """Return the accelerators that have joined the cluster."""
        new = self._farm.joined_runners(device_of(self._plan), threads=1)
        # While there is none those that were are counted: they come back, or it fails.
        if self._farm.devices:
            self._hold(self._farm.devices)
        self._runners += new
        return self._runs(new)

    def rest(self) -> None:
        """Give back the devices, and on a CPU the cores, until the next list."""
        self._farm.stop_runners()
        self._runners, self._pool = (), None

    def _devices(self, threads: int) -> tuple[RemoteRunner, ...]:
        """Return the devices' runners, the same at each call."""
        if not self._runners:
            self._runners = self._farm.runners(device_of(self._plan), threads)
        return self._runners

    def _building(
        self, groups: Sequence[Sequence[Candidate]], stage: Stage
    ) -> Iterator[BuildResult | None]:
        """Compile one candidate of each group, and give all of it what came of it."""
        group_of = {group[0].choice_hash: group for group in groups}
        firsts = [group[0] for group in groups]
        for result in self._farm.build_all(firsts, self._stop, self._progress.say):
            if result is None:
                yield None
                continue
            first, *others = group_of[result.choice_hash]
            # On disk before it is told of.
            result = self._store.keep(result, first.build_key)
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


def _names(task: TuneTask) -> set[str]:
    return {candidate.choice_hash for candidate in task.offered.candidates}
