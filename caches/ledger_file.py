"""The ledger of a process that may die at any time: each entry in a file, at once.

A line of `PID-TIME.jsonl` is `["process", ...]`, `["rank", ...]`, `["event", ...]`,
`["lookup", ...]` or `["graph"]`. A file that could not be written to its end is named
`.broken`; where there could be none, a folder is.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flytune.caches.ledger import Event, Kind, Ledger, Lookup

_ROWS, _BROKEN = ".jsonl", ".broken"


Rank = tuple[int, int]
"""A process's number in its group, from 0, and how many the group has."""


class FileLedger(Ledger):
    """Writes what it is told into a folder, in a file of each process. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._forget()
        # A forked child would write into its parent's file.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._writing = threading.Lock()
        self._file: int | None = None
        self._path = ""
        self._rank: Rank | None = None
        self._broken = False

    def add(self, event: Event) -> None:
        seconds = round(event.seconds, 4)
        self._write("event", [event.kind, event.what, seconds, list(event.detail)])

    def add_lookup(self, lookup: Lookup) -> None:
        key, parts = lookup.key, dict(lookup.parts)
        self._write("lookup", [lookup.layer, lookup.state, key, parts, lookup.reason])

    def add_graph(self) -> None:
        self._write("graph")

    def _write(self, *row: Any) -> None:
        with self._writing:
            if self._broken:
                return
            try:
                if self._file is None:
                    self._open()
                # A program joins its group at any time, but before it needs another's.
                if (rank := _rank()) != self._rank:
                    self._rank = rank
                    self._append(("rank", rank))
                self._append(row)
            except OSError as error:
                self._give_up(error)

    def _open(self) -> None:
        # A process that becomes another program keeps its number.
        name = f"{os.getpid()}-{time.time_ns()}"
        self._path = str(self._folder / name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path + _ROWS, flags, 0o600)
        words = getattr(sys, "orig_argv", sys.argv)
        self._append(("process", os.getpid(), os.getppid(), list(words)))

    def _append(self, row: Any) -> None:
        line = (json.dumps(row) + "\n").encode()
        assert self._file is not None
        # One call a line, so that what a killed process leaves is whole lines.
        if os.write(self._file, line) != len(line):
            raise OSError("the disk is full")

    def _give_up(self, error: OSError) -> None:
        self._broken = True
        # A full disk lets a file be renamed, and a process without descriptors may
        # still make a folder.
        try:
            os.rename(self._path + _ROWS, self._path + _BROKEN)
        except OSError:
            with contextlib.suppress(OSError):
                os.mkdir(self._path + _BROKEN)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(f"flytune: the ledger cannot be written: {error}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class ProcessLedger:
    """What one process did, until it ended or died."""

    pid: int
    parent: int
    command: tuple[str, ...]
    """The words that it was started with."""
    events: tuple[Event, ...]
    lookups: tuple[Lookup, ...]
    graphs: int
    """Compiled graphs that were called."""
    rank: Rank | None = None
    """In torch.distributed's default group; None outside of one."""

    @property
    def name(self) -> str:
        """The process for a person, without the path of its program."""
        words = [Path(self.command[0]).name, *self.command[1:]] if self.command else []
        shown = " ".join(words[:4])
        rank = "" if self.rank is None else f"rank {self.rank[0]} of {self.rank[1]}, "
        return f"{rank}process {self.pid} ({shown[:60]})"


def read_ledgers(folder: Path) -> tuple[ProcessLedger, ...]:
    """Read what the processes wrote, in the order in which they began.

    A torn last line, of a process that was killed, is left out.
    """
    paths = [*folder.glob(f"*{_ROWS}"), *folder.glob(f"*{_BROKEN}")]
    return tuple(map(_read, sorted(paths, key=lambda path: path.stem.split("-")[1])))


def joined(processes: Iterable[ProcessLedger]) -> dict[str, Any]:
    """Return what all of them did, in the form of `Ledger.to_json`."""
    whole = Ledger()
    for process in processes:
        for event in process.events:
            whole.add(event)
        for lookup in process.lookups:
            whole.add_lookup(lookup)
        for _ in range(process.graphs):
            whole.add_graph()
    return whole.to_json()


def _read(path: Path) -> ProcessLedger:
    events: list[Event] = []
    lookups: list[Lookup] = []
    graphs = pid = parent = 0
    command: list[str] = []
    rank: Rank | None = None
    for kind, *rest in _rows(path) if path.is_file() else ():
        if kind == "process":
            pid, parent, command = rest
        elif kind == "rank":
            rank = None if rest[0] is None else (rest[0][0], rest[0][1])
        elif kind == "event":
            name, what, seconds, detail = rest[0]
            events.append(Event(Kind(name), what, seconds, tuple(detail)))
        elif kind == "lookup":
            lookups.append(Lookup(*rest[0]))
        else:
            graphs += 1
    if path.suffix == _BROKEN:
        events.append(Event(Kind.UNSEEN, "its ledger could not be written to its end"))
    return ProcessLedger(
        pid, parent, tuple(command), tuple(events), tuple(lookups), graphs, rank
    )


def _rank() -> Rank | None:
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_initialized():
            return None
        return distributed.get_rank(), distributed.get_world_size()
    except (AttributeError, ValueError, RuntimeError):  # it is being imported, or ended
        return None


def _rows(path: Path) -> Iterator[list[Any]]:
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)
