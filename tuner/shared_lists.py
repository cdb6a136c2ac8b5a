"""What the builds of a fleet share: a list is decided once, and a kernel built once.

Builds share where their target, the settings that decide a time, and the search are the
same; which list is the same as another `CandidateList.key` says.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flytune.caches.columns import SHAPE_COLUMNS
from flytune.caches.lists import TunedList
from flytune.caches.records import TuningRecord
from flytune.shapes.errors import FlytuneError
from flytune.tuner.built_kernels import BuiltKernels
from flytune.tuner.candidate import ATEN, TuneTask
from flytune.tuner.journal import JOURNAL, read_entries
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.recall import list_id, list_name


def sharing_key(plan: Plan, options: BuildOptions) -> str:
    """Return what two builds have in common whose decisions are the same, as JSON."""
    policy = plan.policy
    return json.dumps(
        {
            "target": plan.target.to_json(),
            "device": policy.device,
            "threads": policy.threads,
            "inductor": dict(policy.inductor),
            "env": dict(policy.env),
            "search": options.search,
            # Others' times are none of the device's.
            "recorded": None if options.recorded is None else str(options.recorded),
        },
        sort_keys=True,
    )


class SharedLists:
    """Decisions and compiled candidates of builds that share a `sharing_key`."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[TuningRecord, ...]] = {}
        self._stores: dict[Path, BuiltKernels] = {}
        self.offered: set[str] = set()
        """Names of the lists with a choice that builds of this run have met."""
        self.ceilings: dict[str, Any] = {}
        """As `measure_ceilings`; empty where nothing was timed."""

    def add(self, name: str, records: Iterable[TuningRecord]) -> None:
        """Take the decision of a list, in place of what was known of it."""
        self._records[name] = tuple(records)

    def open_store(self, work: Path) -> None:
        """Let others take what a build compiles, and has compiled, in its directory."""
        self._stores[work] = BuiltKernels(work / "built")

    def read(self, work: Path, *, fresh: bool = False) -> None:
        """Take what a build has left in its directory, which another may hold.

        What is no record of this version is passed over.

        Args:
            fresh: Whether that is going to be thrown away.
        """
        if fresh:
            return
        self.open_store(work)
        found: dict[str, dict[str, TuningRecord]] = {}
        for entry in read_entries(work / JOURNAL):
            try:
                if entry["kind"] == "record":
                    record = TuningRecord.from_row(entry["row"])
                    # The latest row of a candidate counts.
                    found.setdefault(entry["list"], {})[record.choice_hash] = record
                elif entry["kind"] == "ceilings":
                    self.ceilings = dict(entry["row"])
            except (FlytuneError, KeyError, TypeError, ValueError):
                continue
        for name, records in found.items():
            self.add(name, records.values())

    def add_bundle(self, lists: Iterable[TunedList]) -> None:
        """Take the decisions of a bundle that is kept, where none are known."""
        for one in lists:
            first = one.records[0]
            hashes = tuple(sorted(record.choice_hash for record in one.records))
            key = (first.inductor_op, first.inputs_key, first.precision, hashes)
            self._records.setdefault(list_name(key), one.records)

    def of(self, task: TuneTask) -> tuple[TuningRecord, ...]:
        """Return the records of a task's list, as those of the task's own GEMM."""
        shape = task.shape.to_row()
        own = {column.name: shape[column.name] for column in SHAPE_COLUMNS}
        # When another build decided it says nothing in this one.
        return tuple(
            replace(record, **own, at_s=None)
            for record in self._records.get(list_id(task), ())
        )

    def knows(self, task: TuneTask) -> bool:
        """Whether a list was decided by another build."""
        return list_id(task) in self._records

    def stores(self, own: Path) -> tuple[BuiltKernels, ...]:
        """Return the compiled candidates of all builds but the one in `own`."""
        return tuple(store for work, store in self._stores.items() if work != own)


class Sharing:
    """One build's part in what a fleet shares, and what it took and gave."""

    def __init__(self, lists: SharedLists) -> None:
        self._lists = lists
        self.taken: set[str] = set()
        """Names of the lists that another model's build has decided or compiled."""
        self.timed: set[str] = set()
        """Names of those that were timed for this one."""
        self.choices: set[str] = set()
        """Names of all its lists with a choice."""

    @property
    def ceilings(self) -> Mapping[str, Any]:
        """What the device reaches at most, where another build has measured it."""
        return self._lists.ceilings

    def keep_ceilings(self, ceilings: Mapping[str, Any]) -> None:
        """Take what the device reaches, for the others too."""
        self._lists.ceilings = dict(ceilings)

    def open_store(self, work: Path) -> None:
        """Let others take what this build compiles, as `SharedLists.open_store`."""
        self._lists.open_store(work)

    def of(self, task: TuneTask) -> tuple[TuningRecord, ...]:
        """Return what another build has decided, as `SharedLists.of`."""
        return self._lists.of(task)

    def give(self, name: str, records: Iterable[TuningRecord]) -> None:
        """Let the others have a decision of this build."""
        self._lists.add(name, records)

    def take_kernels(
        self, tasks: Sequence[TuneTask], built: Path, *, every: bool
    ) -> int:
        """Copy other builds' compiled candidates to those of this one; return how many.

        Args:
            every: Whether those of lists that are decided already are wanted too, for
                they are what the build is to pack.

        Raises:
            FlytuneError: the disk is full or gone.
        """
        choices = [task for task in tasks if len(task.offered.candidates) > 1]
        self.choices = {list_id(task) for task in choices}
        if every:
            self.taken |= self.choices & self._lists.offered
        self._lists.offered |= self.choices
        own, taken = BuiltKernels(built), 0
        stores = self._lists.stores(built.parent)
        for task in tasks:
            if self._lists.knows(task) and not every:
                continue
            for one in task.offered.candidates:
                if one.backend == ATEN or own.find(one.choice_hash, one.build_key):
                    continue
                found = (s.find(one.choice_hash, one.build_key) for s in stores)
                if (theirs := next(filter(None, found), None)) is not None:
                    own.keep(theirs, one.build_key)
                    taken += 1
        return taken
