"""What earlier work left: decisions in the journal or an older bundle, and kernels."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flytune.caches.columns import Status
from flytune.caches.records import TuningRecord
from flytune.tuner.candidate import BuildResult, TuneTask
from flytune.tuner.decision import Decision
from flytune.tuner.journal import Journal

_Key = tuple[str | None, str | None, str | None]


class Recall:
    """Stored decisions: of this build's journal first, then of an older bundle."""

    def __init__(self, journal: Journal, older: Iterable[TuningRecord]) -> None:
        self._journal = journal
        self._rows: dict[str, list[dict[str, Any]]] = {}
        for entry in journal.entries("record"):
            self._rows.setdefault(entry["list"], []).append(entry["row"])
        self._older: dict[_Key, dict[str, TuningRecord]] = {}
        for record in older:
            key = (record.inductor_op, record.inputs_key, record.precision)
            self._older.setdefault(key, {})[record.choice_hash] = record

    def decision(self, task: TuneTask) -> Decision | None:
        """Return the stored decision of the very same list, if it is whole."""
        rows = self._rows.get(list_id(task), [])
        stored = {r.choice_hash: r for r in map(TuningRecord.from_row, rows)}
        if len(stored) < len(task.offered.candidates):
            offered = task.offered
            key = (offered.op, offered.inputs_key, offered.precision)
            stored = self._older.get(key, {})
        records = tuple(
            stored[c.choice_hash]
            for c in task.offered.candidates
            if c.choice_hash in stored
        )
        whole = len(records) == len(task.offered.candidates)
        if not whole or sum(record.winner for record in records) != 1:
            return None
        return Decision(task, records)

    def keep(self, decision: Decision) -> None:
        """Write a decision to the journal."""
        name = list_id(decision.task)
        self._journal.add_all(
            ("record", {"list": name, "row": record.to_row()})
            for record in decision.records
        )


def list_id(task: TuneTask) -> str:
    """Return a short name of a task's list that is the same in every process."""
    return hashlib.sha256(repr(task.offered.key).encode()).hexdigest()[:16]


class BuiltKernels:
    """Built candidates on disk, so that a build that goes on compiles none twice."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, result: BuildResult) -> None:
        """Store what was built; a failure is not stored, and tried again."""
        if result.status is not Status.OK:
            return
        folder = self._folder(result.choice_hash)
        for name, content in result.files.items():
            path = folder / "files" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "built.part"
        names = sorted(result.files)
        part.write_text(json.dumps({"seconds": result.compile_s, "files": names}))
        part.replace(folder / "built.json")

    def find(self, choice_hash: str) -> BuildResult | None:
        """Return what was built for a candidate, if all of it is there."""
        folder = self._folder(choice_hash)
        try:
            row = json.loads((folder / "built.json").read_text())
            files = {n: (folder / "files" / n).read_bytes() for n in row["files"]}
        except (OSError, ValueError, KeyError):
            return None
        return BuildResult(
            choice_hash, Status.OK, compile_s=row["seconds"], files=files
        )

    def _folder(self, choice_hash: str) -> Path:
        return self._root / hashlib.sha256(choice_hash.encode()).hexdigest()[:32]
