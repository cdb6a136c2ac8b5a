"""Tunes of the same few lists, each in a process of its own, and bundles of them.

The lists and their compiled candidates are those of one build; what is done anew is
what a build's search does with them. Nothing is baked: the gate reads records.
"""

import datetime
import importlib.metadata
import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from slowed import slowed
from stages import BUILT, TASKS

from flytune.caches.columns import Status
from flytune.caches.lists import TunedList
from flytune.caches.manifest import Manifest
from flytune.caches.packing import pack
from flytune.caches.policy import ServingPolicy
from flytune.caches.records import RECORDS_NAME, write_records
from flytune.caches.regression.check import Check, Settings, check
from flytune.caches.regression.sides import Side, Sides
from flytune.caches.target import Target
from flytune.tuner.built_kernels import BuiltKernels
from flytune.tuner.candidate import ATEN, BuildResult, TuneTask
from flytune.tuner.decision import decide
from flytune.tuner.progress import Progress
from flytune.tuner.recorded_runner import only
from flytune.tuner.retime import Retimer
from flytune.tuner.runner import Device
from flytune.tuner.timing import TimingPlan
from flytune.tuner.workers import Farm

SLOWDOWN = 0.05
"""The share that is to be found."""
LEAST_US = 150.0
"""Of shorter kernels what looking at the clock takes adds to so small a share."""


class Tuner:
    """Tunes some lists of one build again and again, and compares the bundles."""

    def __init__(self, first: Mapping[str, Any], lists: int, farm: Farm) -> None:
        """Take what a build left.

        Args:
            first: What `run_stages` returned of it.
            lists: So many of its lists at most.
            farm: Started.
        """
        work = Path(first["work"])
        self._policy = ServingPolicy.from_json(first["policy"])
        self._device, self._farm = Device(**first["device"]), farm
        self._store = BuiltKernels(work / BUILT)
        every = pickle.loads((work / TASKS).read_bytes())
        self.tasks, self.long = chosen(every, first["lists"], lists)
        self._built = {
            candidate.choice_hash: self._of_build(candidate.choice_hash, task)
            for task in self.tasks
            for candidate in task.offered.candidates
        }

    def tune(self, out: Path, tasks: Sequence[TuneTask] | None = None) -> Path:
        """Time lists in a new process; return the bundle of what was decided."""
        runner = self._farm.runners(self._device, self._policy.threads)[0]
        runner.start()
        try:
            decisions = []
            for task, whole in zip(tasks or self.tasks, self.tasks, strict=True):
                names = [c.choice_hash for c in task.offered.candidates]
                builds = [self._built[name] for name in names]
                results = runner.run(_with(task, whole), builds, TimingPlan())
                decisions.append(decide(task, builds, results))
        finally:
            runner.stop()
        with tempfile.TemporaryDirectory(dir=out.parent) as folder:
            records = [record for one in decisions for record in one.records]
            write_records(records, Path(folder) / RECORDS_NAME)
            return pack(Path(folder), self._manifest(), out, keys=[])

    def slower(self, baseline: Path, at: int, share: float) -> list[TuneTask]:
        """Return the lists, of which one has the baseline's winner alone, slowed.

        Args:
            share: By which a launch takes longer; 0 for the same under another name.
        """
        task = self.tasks[at]
        winner = winner_of(Side.open(baseline).lists, task)
        (candidate,) = only(task, [winner]).offered.candidates
        other, built = slowed(candidate, self._built[winner], share)
        self._built[other.choice_hash] = built
        offered = replace(task.offered, candidates=(other,))
        changed = replace(task, offered=offered)
        return [*self.tasks[:at], changed, *self.tasks[at + 1 :]]

    def compare(
        self,
        new: Path,
        baseline: Path,
        also: Sequence[TuneTask] = (),
        *,
        raced: bool = False,
    ) -> Check:
        """Compare two bundles as `flytune check NEW --baseline OLD --retime` does.

        Args:
            also: Tasks with candidates that are offered besides.
            raced: Whether the records are not asked, as on other hardware.
        """
        sides = Side.open(new), Side.open(baseline)
        offered = [task.offered for task in (*self.tasks, *also)]
        workers = _Workers(self._farm, self._built)
        retimer = (_Elsewhere if raced else Retimer)(
            *sides,
            Progress(),
            lists=lambda _side, _search: offered,
            farm=lambda *_, **__: nullcontext(workers),
        )
        today = datetime.datetime.now(datetime.UTC).date()
        return check(*sides, Settings(), today, retimer)

    def _of_build(self, name: str, task: TuneTask) -> BuildResult:
        (candidate,) = only(task, [name]).offered.candidates
        if candidate.backend == ATEN:
            return BuildResult(name, Status.OK)
        found = self._store.find(name, candidate.build_key)
        return found or BuildResult(name, Status.COMPILE_ERROR, "it was not built")

    def _manifest(self) -> Manifest:
        return Manifest(
            created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            flytune=importlib.metadata.version("flytune"),
            model={"name": "gate", "tp": 1, "ep": 1, "engine": "transformers"},
            program={},
            policy=self._policy.to_json(),
            inductor_config={},
            target=Target.live(
                self._policy.device, threads=self._policy.threads
            ).to_json(),
            software="serving",
            timed_on=self._device.name,
            coverage={},
            winners=(),
            bake={"passes": [{}], "settled": True, "remaining": {}},
            verify={"ok": True, "failures": []},
        )


def _with(task: TuneTask, whole: TuneTask) -> TuneTask:
    """Return a task with the candidates that another has besides, which do not race.

    The library's alone says what is fused.
    """
    every = dict.fromkeys((*task.offered.candidates, *whole.offered.candidates))
    return replace(task, offered=replace(task.offered, candidates=tuple(every)))


class _Elsewhere(Retimer):
    """As on other hardware than that of the bundles, where all kernels race."""

    def is_here(self, sides: Sides) -> bool:
        """Say no."""
        return False


class _Workers:
    """Workers that have compiled everything already."""

    def __init__(self, farm: Farm, built: Mapping[str, BuildResult]) -> None:
        self._farm, self._built = farm, built

    def build_all(self, candidates: Sequence[Any], *_: Any) -> Iterator[BuildResult]:
        """Yield what was built before."""
        return (self._built[candidate.choice_hash] for candidate in candidates)

    def runners(self, device: Device, threads: int) -> Sequence[Any]:
        """Return the farm's."""
        return self._farm.runners(device, threads)


def chosen(
    tasks: Sequence[TuneTask], lists: Sequence[Mapping[str, Any]], most: int
) -> tuple[list[TuneTask], int]:
    """Return the first lists with a choice, and of how many a slowdown can be made.

    Those come first.
    """
    best = {
        tuple(row["key"]): min(c["us"] for c in row["candidates"] if c["us"])
        for row in lists
    }
    found: dict[tuple[str, ...], TuneTask] = {}
    for task in tasks:
        offered = task.offered
        key = (offered.op, offered.inputs_key, offered.precision)
        if key in best:
            found.setdefault(key, task)
    ordered = sorted(found, key=lambda key: best[key] < LEAST_US)
    long = sum(us >= LEAST_US for key, us in best.items() if key in found)
    return [found[key] for key in ordered[:most]], min(most, long)


def winner_of(lists: Sequence[TunedList], task: TuneTask) -> str:
    """Return the hash of a task's winner in a bundle."""
    for one in lists:
        winner = one.winner
        key = (one.records[0].inputs_key, one.records[0].inductor_op)
        if winner and key == (task.offered.inputs_key, task.offered.op):
            return winner.choice_hash
    raise LookupError(f"no list of the kind was tuned: {task.shape}")
