"""Candidates that killed or hung a device: kept out of later runs too.

JSON lines in one file beside the work directories, appended under a lock. A line that
is no entry is passed over.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import ATEN, BuildResult, RunResult, TuneTask

NAME = "quarantine.jsonl"
EXCLUDED = "excluded by --exclude"
_QUARANTINED = "quarantined in "


def was_refused(reason: str | None) -> bool:
    """Whether a record's reason is that its candidate might not be tried."""
    return reason == EXCLUDED or (reason or "").startswith(_QUARANTINED)


class Quarantine:
    """The candidates that may not be tried on one device, each in its list."""

    def __init__(self, path: Path, device: str, excluded: Iterable[str] = ()) -> None:
        """Read what earlier runs have put in.

        Args:
            path: Of the file, which may be absent.
            device: Its product's name.
            excluded: Hashes that are kept out in this run alone.

        Raises:
            FlytuneError: the file cannot be read.
        """
        self._path, self._device = path, device
        self._reasons = dict(self._read())
        self._excluded = frozenset(excluded)

    @property
    def names(self) -> frozenset[tuple[str, str]]:
        """Key of the inputs and hash of each candidate that earlier runs put in."""
        return frozenset(self._reasons)

    def refusals(self, task: TuneTask) -> dict[str, BuildResult]:
        """Return a result for each candidate of a list that may not be tried."""
        refused = {}
        for candidate in task.offered.candidates:
            name = candidate.choice_hash
            reason = self._reasons.get((task.offered.inputs_key, name))
            if name in self._excluded:
                reason = EXCLUDED
            elif reason is not None:
                reason = f"{_QUARANTINED}{self._path}: {reason}"
            if reason is not None:
                refused[name] = BuildResult(name, Status.FAULT, reason)
        return refused

    def add(self, task: TuneTask, results: Iterable[RunResult]) -> tuple[str, ...]:
        """Keep those of a list's candidates that cost the device's process.

        Never the library's, without which a list may have no survivor.

        Returns:
            The hashes of the new ones.

        Raises:
            FlytuneError: the file cannot be written.
        """
        key = task.offered.inputs_key
        library = {c.choice_hash for c in task.offered.candidates if c.backend == ATEN}
        new = {
            (key, result.choice_hash): result.reason
            for result in results
            if result.cost_the_process
            and result.choice_hash not in library
            and (key, result.choice_hash) not in self._reasons
        }
        if new:
            self._append(new)
            self._reasons |= new
        return tuple(name for _, name in new)

    def _append(self, new: Mapping[tuple[str, str], str]) -> None:
        rows = [
            {
                "device": self._device,
                "inputs_key": key,
                "choice_hash": name,
                "reason": reason,
            }
            for (key, name), reason in new.items()
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        try:
            with self._path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # A line that a killed build left torn must not take ours with it.
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    text = text if file.read() == b"\n" else f"\n{text}"
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FlytuneError(
                f"cannot write the quarantine: {self._path}: {error.strerror}"
            ) from error

    def _read(self) -> Iterator[tuple[tuple[str, str], str]]:
        try:
            lines = self._path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise FlytuneError(
                f"cannot read the quarantine: {self._path}: {error.strerror}"
            ) from error
        for line in lines:
            try:
                row = json.loads(line)
                if row["device"] == self._device:
                    key = str(row["inputs_key"]), str(row["choice_hash"])
                    yield key, str(row["reason"])
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
