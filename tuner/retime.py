"""Two bundles' winners, timed again side by side on the device at hand.

Both are compiled here, and race in processes of their own: in each one value of each
list, as `caches.regression.raced` takes them.
"""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from flytune.caches.columns import Status
from flytune.caches.device_profile import DeviceProfile, live_profile
from flytune.caches.policy import ServingPolicy, uses_flydsl
from flytune.caches.regression.again import Thresholds
from flytune.caches.regression.device import differing
from flytune.caches.regression.raced import LOOKS, Raced, sure
from flytune.caches.regression.sides import Pair, Side, Sides
from flytune.caches.several import parts_of
from flytune.caches.target import Target
from flytune.caches.words import counted
from flytune.tuner.candidate import (
    ATEN,
    BuildResult,
    Candidate,
    CandidateList,
    TuneTask,
)
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.progress import Progress
from flytune.tuner.relist import SEARCHES, Winners, relisted, winners_in
from flytune.tuner.runner import Device
from flytune.tuner.timed_device import timed_device
from flytune.tuner.winners import once, unraced, without_race
from flytune.tuner.workers import Farm

Lists = Callable[[Side, str], Sequence[CandidateList]]
"""Returns the lists of a bundle here, as `relisted`."""


class Workers(Protocol):
    """As far as a `Farm` is used here."""

    def build_all(self, candidates: Sequence[Candidate]) -> Any:
        """Build every candidate, as the farm does."""

    def runners(self, device: Device, threads: int) -> Sequence[Any]:
        """Return a runner a device, each of whose processes is new when it starts."""


@dataclass
class _Racing:
    """A list under way: the old winner first, or the one kernel that both are."""

    at: int
    pair: Pair
    task: TuneTask
    candidates: tuple[Candidate, ...]
    builds: tuple[BuildResult, ...] = ()
    values: list[float] = field(default_factory=list)
    times_us: list[float] = field(default_factory=list)
    """Of the old winner, by process."""

    def raced(self) -> Raced:
        return Raced(tuple(self.values), statistics.median(self.times_us))


class Retimer:
    """Times winners again on the device that two bundles are for, if it is here.

    Both bundles must be trusted: their programs are lowered, and their kernels run.
    """

    def __init__(
        self,
        new: Side,
        old: Side,
        progress: Progress,
        lists: Lists = relisted,
        farm: Callable[..., AbstractContextManager[Workers]] = Farm,
    ) -> None:
        self._sides = (new, old)
        self._progress, self._lists, self._farm = progress, lists, farm
        self._policy = ServingPolicy.from_json(parts_of(new.manifest)[0]["policy"])
        self._profile: DeviceProfile | None = None
        self.unable = ""
        if self._policy.device != "cpu":
            self._profile = live_profile()
            if self._profile is None:
                self.unable = "no accelerator here to time on"
        hardware = None if self._profile is None else self._profile.hardware()
        self._target = Target.here(threads=self._policy.threads, hardware=hardware)
        self._device = timed_device(self._target.hardware, self._profile)
        self.device = self._device.name

    def is_here(self, sides: Sides) -> bool:
        """Whether that device is the very hardware that both bundles are for."""
        here = self._target.to_json()["hardware"]
        both = (sides.old, sides.new)
        return not any(differing(s.manifest.target["hardware"], here) for s in both)

    def __call__(
        self, pairs: Sequence[Pair], thresholds: Thresholds, others: int
    ) -> Sequence[Raced]:
        """Return what came of each list, in their order.

        Raises:
            FlytuneError: a program cannot be lowered, or Ray fails.
        """
        sides = Sides.of(*self._sides)
        done = {
            at: known
            for at, pair in enumerate(pairs)
            if (known := without_race(pair, same_software=sides.same_software))
        }
        left = {at: pair for at, pair in enumerate(pairs) if at not in done}
        if self.unable:
            return [done.get(at, Raced(why=self.unable)) for at in range(len(pairs))]
        if left:
            racing, refused = self._tasks(left)
            done |= refused
            if racing:
                done |= self._race(racing, thresholds, others)
        return [done[at] for at in range(len(pairs))]

    def _tasks(
        self, pairs: Mapping[int, Pair]
    ) -> tuple[list[_Racing], dict[int, Raced]]:
        """Find both winners of each list among the candidates that are offered here."""
        self._progress.say(
            f"retime: listing the candidates of {counted(len(pairs), 'list')}"
        )
        lists: list[CandidateList] = []
        found: dict[int, Winners] = {}
        why: dict[int, str] = {}
        # A CPU's lists are of one width.
        searches = SEARCHES[:1] if self._profile is None else SEARCHES
        for search, side in itertools.product(searches, self._distinct()):
            if len(found) == len(pairs):
                break
            lists += self._lists(side, search)
            for at in pairs.keys() - found.keys():
                winners, why[at] = winners_in(pairs[at], lists)
                if winners is not None:
                    found[at] = winners
        racing = [_Racing(at, pairs[at], *found[at]) for at in sorted(found)]
        return racing, {at: Raced(why=why[at]) for at in pairs.keys() - found.keys()}

    def _distinct(self) -> Sequence[Side]:
        """Return the new bundle, and the old one where its programs are others."""
        new, old = self._sides
        programs = [
            [(part["program"], part["policy"]) for part in parts_of(side.manifest)]
            for side in self._sides
        ]
        return (new,) if programs[0] == programs[1] else (new, old)

    def _race(
        self, racing: Sequence[_Racing], thresholds: Thresholds, others: int
    ) -> dict[int, Raced]:
        policy = self._policy
        flydsl = uses_flydsl(policy)
        given = (None, policy.env, Deadlines(), self._profile)
        with self._farm(*given, flydsl=flydsl) as farm:
            built = self._built(farm, racing)
            done = {}
            left = []
            for one in racing:
                one.builds = tuple(built[c.choice_hash] for c in one.candidates)
                refusal = unraced(one.builds)
                if refusal is None:
                    left.append(one)
                else:
                    done[one.at] = refusal
            tests = len(left) + others
            return done | self._processes(farm, left, thresholds, tests)

    def _built(
        self, farm: Workers, racing: Sequence[_Racing]
    ) -> Mapping[str, BuildResult]:
        every = {c.choice_hash: c for r in racing for c in r.candidates}
        built = {
            name: BuildResult(name, Status.OK)
            for name, candidate in every.items()
            if candidate.backend == ATEN
        }
        waiting = [c for name, c in every.items() if name not in built]
        with self._progress.stage("build", len(waiting)) as stage:
            for result in farm.build_all(waiting):
                if result is not None:
                    built[result.choice_hash] = result
                    stage.advance(result.reason)
        return built

    def _processes(
        self,
        farm: Workers,
        racing: Sequence[_Racing],
        thresholds: Thresholds,
        tests: int,
    ) -> dict[int, Raced]:
        """Race in one process after another until every list is sure, or the last."""
        done: dict[int, Raced] = {}
        before = 0
        for look in LOOKS:
            left = [one for one in racing if one.at not in done]
            with self._progress.stage("race", (look - before) * len(left)) as stage:
                for number in range(before, look):
                    left = [one for one in left if one.at not in done]
                    done |= self._one_process(farm, left, number, stage.advance)
            before = look
            for one in left:
                if one.at in done:
                    continue
                allowed = thresholds(one.pair.name)
                raced = one.raced()
                if (
                    sure(raced.values, raced.old_us, allowed, tests)
                    or look == LOOKS[-1]
                ):
                    done[one.at] = raced
        return done

    def _one_process(
        self,
        farm: Workers,
        racing: Sequence[_Racing],
        number: int,
        advance: Callable[[str], None],
    ) -> dict[int, Raced]:
        """Add a value to each list; return those that fail."""
        failed: dict[int, Raced] = {}
        if not racing:
            return failed
        runner = farm.runners(self._device, self._policy.threads)[0]
        runner.start()
        try:
            for one in racing:
                value, old_us, why = once(runner.run, one.task, one.builds, number)
                if why:
                    failed[one.at] = Raced(why=why)
                else:
                    one.values.append(value)
                    one.times_us.append(old_us)
                advance(str(one.task.shape))
        finally:
            runner.stop()
        return failed
