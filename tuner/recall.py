"""What earlier work left: decisions in the journal or an older bundle, and kernels."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flytune.caches.columns import BUDGET, Status
from flytune.caches.records import TuningRecord
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import TuneTask
from flytune.tuner.decision import Decision
from flytune.tuner.journal import DEVICE, Journal

if TYPE_CHECKING:
    from flytune.tuner.shared_lists import Sharing

TRANSIENT = frozenset({Status.TIMEOUT, Status.OUT_OF_MEMORY})
"""Of the moment, not of the candidate: another run may well end otherwise."""

_Key = tuple[str | None, str | None, str | None, str]


class Recall:
    """Stored decisions: of this build's journal first, then of an older bundle.

    Last come those of the other builds of a fleet, which get this one's.
    """

    def __init__(
        self,
        journal: Journal,
        older: Iterable[TuningRecord],
        device: str = "",
        sharing: "Sharing | None" = None,
    ) -> None:
        """Read what there is.

        Args:
            device: The product that is timed on: other builds may learn of it.
            sharing: What other builds of a fleet have decided, and get to know.
        """
        self._journal, self._sharing = journal, sharing
        if device and not journal.entries(DEVICE):
            journal.add_all([(DEVICE, {"name": device})])
        self._own: dict[str, list[TuningRecord]] = {}
        self.unreadable = 0
        """Entries that are no record of this version, and are passed over."""
        for entry in journal.entries("record"):
            try:
                record = TuningRecord.from_row(entry["row"])
                self._own.setdefault(entry["list"], []).append(record)
            except (FlytuneError, KeyError, TypeError):
                self.unreadable += 1
        self._tried: dict[str, list[tuple[TuningRecord, ...]]] = {}
        for entry in journal.entries("tried"):
            try:
                records = tuple(map(TuningRecord.from_row, entry["rows"]))
                waves = self._tried.setdefault(entry["list"], [])
                # What came after a wave that was done again was of the first attempt.
                del waves[entry["wave"] :]
                waves.append(records)
            except (FlytuneError, KeyError, TypeError):
                self.unreadable += 1
        self._older: dict[_Key, list[TuningRecord]] = {}
        for record in older:
            key = (record.inductor_op, record.inputs_key, record.precision)
            # When another build decided it says nothing in this one.
            moved = replace(record, at_s=None)
            self._older.setdefault((*key, record.module), []).append(moved)

    def tried(self, task: TuneTask) -> list[tuple[TuningRecord, ...]]:
        """Return the waves of a list's search that were journalled, in their order."""
        return list(self._tried.get(list_id(task), ()))

    def keep_tried(
        self, task: TuneTask, wave: int, records: Sequence[TuningRecord]
    ) -> None:
        """Write what became of one wave of a list's search to the journal, as one line.

        A line is there whole, or not at all.
        """
        rows = [record.to_row() for record in records]
        entry = {"list": list_id(task), "wave": wave, "rows": rows}
        self._journal.add_all([("tried", entry)])

    @property
    def ceilings(self) -> dict[str, Any]:
        """What the device reaches at most, as it was measured last."""
        if entries := self._journal.entries("ceilings"):
            return dict(entries[-1]["row"])
        return dict(self._sharing.ceilings) if self._sharing else {}

    def keep_ceilings(self, ceilings: Mapping[str, Any]) -> None:
        """Write what the device reaches to the journal."""
        if ceilings:
            self._journal.add_all([("ceilings", {"row": dict(ceilings)})])
            if self._sharing is not None:
                self._sharing.keep_ceilings(ceilings)

    def decision(self, task: TuneTask) -> Decision | None:
        """Return the stored decision of the very same list, if it is whole."""
        name = list_id(task)
        own = _whole(task, self._own.get(name, []))
        found = own or _whole(task, self._older.get(_key(task), []))
        if found is not None and self._sharing is not None:
            self._sharing.give(name, found.records)
        return found

    def shared(self, task: TuneTask) -> Decision | None:
        """Return the decision of another build of the fleet, if it is whole."""
        return _whole(task, self._sharing.of(task)) if self._sharing else None

    def take(self, task: TuneTask) -> None:
        """Note that another build's decision is taken."""
        if self._sharing is not None:
            self._sharing.taken.add(list_id(task))

    def keep(self, decision: Decision) -> None:
        """Write a decision to the journal."""
        name = list_id(decision.task)
        self._journal.add_all(
            ("record", {"list": name, "row": record.to_row()})
            for record in decision.records
        )
        if self._sharing is not None:
            self._sharing.timed.add(name)
            self._sharing.give(name, decision.records)


def _key(task: TuneTask) -> _Key:
    """Return what the records of an older bundle have in common with a task."""
    offered = task.offered
    return (offered.op, offered.inputs_key, offered.precision, task.shape.module)


def _whole(task: TuneTask, rows: Iterable[TuningRecord]) -> Decision | None:
    """Return the decision in `rows` if they are of the task's candidates, no others.

    A candidate's latest row counts: a list that was journalled again was timed again.
    """
    stored = {record.choice_hash: record for record in rows}
    hashes = [c.choice_hash for c in task.offered.candidates]
    if stored.keys() != set(hashes):
        return None
    if any(record.status in TRANSIENT for record in stored.values()):
        return None
    if sum(record.winner for record in stored.values()) != 1:
        return None
    # What a budget has cut short goes on.
    if any(record.pruned_by == BUDGET for record in stored.values()):
        return None
    return Decision(task, tuple(stored[name] for name in hashes))


def list_id(task: TuneTask) -> str:
    """Return a short name of a task's list that is the same in every process."""
    return list_name(task.offered.key)


def list_name(key: tuple[Any, ...]) -> str:
    """Return a short name of a `CandidateList.key`."""
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]
