"""The journal of a build: every finished row is in the file before the next one starts.

JSON lines, appended. A torn last line is what a killed driver leaves, and is
cut; a line that is no entry of ours is passed over.
"""

import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.bundle import make_private
from flytune.shapes.errors import FlytuneError

JOURNAL = "journal.jsonl"
"""The file's name, in a build's own directory."""
_SYNC_S = 0.5
_MOST_JOURNALS = 20
DEVICE = "device"
"""The kind of the entry that names the product that is timed on."""


class Journal:
    """One build's journal, locked so that two drivers cannot share it.

    Raises:
        FlytuneError: another process holds the journal, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            make_private(path.parent)
            # Unbuffered: what a full disk refused must not be written at the close.
            self._file = path.open("ab+", buffering=0)
        except OSError as error:
            raise FlytuneError(f"cannot write the journal: {path}: {error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise FlytuneError(
                f"another build is using this directory: {path.parent}",
                hint="wait for it, or give this one another --work",
            ) from error
        self._entries = list(self._read())
        self._synced = -math.inf

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        # Nothing is lost where the disk refuses: each write was whole.
        with contextlib.suppress(OSError):
            self._sync(now=True)
        self._file.close()

    def add_all(self, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Append (kind, entry) pairs and return once they are in the file.

        A process that dies loses none of them, a host that does `_SYNC_S` of them.

        Raises:
            FlytuneError: the disk is full or gone.
        """
        rows = [{"kind": kind, **entry} for kind, entry in entries]
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        end = self._file.seek(0, os.SEEK_END)
        try:
            rest = memoryview(text)
            while rest:
                rest = rest[self._file.write(rest) :]
            self._sync()
        except OSError as error:
            self._file.truncate(end)
            raise FlytuneError(
                f"cannot write the journal: {self._path}: {error.strerror}"
            ) from error
        self._entries += rows

    def _sync(self, *, now: bool = False) -> None:
        """Wait for the disk, which takes as long as many a decision, now and then."""
        if now or time.monotonic() - self._synced > _SYNC_S:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def clear(self) -> None:
        """Forget every entry."""
        self._file.truncate(0)
        self._entries = []

    def entries(self, kind: str) -> tuple[dict[str, Any], ...]:
        """Return the entries of one kind, oldest first."""
        return tuple(e for e in self._entries if e["kind"] == kind)

    def _read(self) -> Iterator[dict[str, Any]]:
        self._file.seek(0)
        lines = self._file.readall().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            self._file.truncate(sum(map(len, lines[:-1])))
            lines.pop()
        yield from _entries(lines)


def read_entries(
    path: Path, wanted: Callable[[bytes], bool] = lambda _: True
) -> Iterator[dict[str, Any]]:
    """Yield the entries of a journal that another process may hold, oldest first.

    There are none where it is absent or cannot be read.

    Args:
        wanted: Of a line, whether it is read at all: there may be many.
    """
    with contextlib.suppress(OSError):
        yield from _entries(filter(wanted, path.read_bytes().splitlines()))


def newest_journals(work: Path, own: Path) -> list[Path]:
    """Return the journals of the last builds in a work directory, the newest first.

    Args:
        work: Holds the builds' own directories.
        own: The directory of the build that asks, whose journal is left out.
    """
    dated = []
    for path in work.glob(f"*/{JOURNAL}"):
        # Another build may have removed it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            dated.append((path.stat().st_mtime, path))
    journals = [path for _, path in sorted(dated, reverse=True) if path.parent != own]
    return journals[:_MOST_JOURNALS]


def _entries(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "kind" in row:
            yield row
