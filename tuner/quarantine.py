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
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask

NAME = "quarantine.jsonl"
EXCLUDED = "excluded by --exclude"
# What may cost more than the candidate: a device, or the minutes of a deadline.
_DANGEROUS = frozenset({Status.FAULT, Status.TIMEOUT})


class Quarantine:
    """The candidates that may not be tried on one device, by choice hash."""

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
        self._reasons |= dict.fromkeys(excluded, EXCLUDED)

    def refusals(self, task: TuneTask) -> dict[str, BuildResult]:
        """Return a result for each candidate of a list that may not be tried."""
        return {
            name: BuildResult(name, Status.FAULT, f"quarantined: {reason}")
            for candidate in task.offered.candidates
            if (reason := self._reasons.get(name := candidate.choice_hash)) is not None
        }

    def add(self, results: Iterable[RunResult]) -> tuple[str, ...]:
        """Keep the dangerous ones of a list's results; return their hashes.

        Raises:
            FlytuneError: the file cannot be written.
        """
        new = {
            result.choice_hash: result.reason
            for result in results
            if result.status in _DANGEROUS and result.choice_hash not in self._reasons
        }
        if new:
            self._append(new)
            self._reasons |= new
        return tuple(new)

    def _append(self, new: Mapping[str, str]) -> None:
        rows = [
            {"device": self._device, "choice_hash": name, "reason": reason}
            for name, reason in new.items()
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

    def _read(self) -> Iterator[tuple[str, str]]:
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
                    yield str(row["choice_hash"]), str(row["reason"])
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
