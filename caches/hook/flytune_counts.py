"""How often a process ran each GEMM, in two files that outlive it.

`NAME.jsonl` has a line for each distinct GEMM, written when it is first seen, and
`NAME.counts` how often each ran, in shared memory: nothing is lost with a process that
is killed, and nothing is written at each call.

Standard library alone, and nothing newer than Python 3.10: as the hook.
"""

import json
import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import Any

MOST = 65536
"""Distinct GEMMs that a process counts one by one."""
_COUNT_BYTES = 8


class Counts:
    """How often this process ran each GEMM, in its two files."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._forget()
        # A forked child would count into its parent's files.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[Any, int] = {}
        self._rows = -1
        self._counts: Any = None

    def add(self, key: Any, row: Callable[[], dict[str, Any]]) -> None:
        """Count one call.

        Args:
            key: what tells one GEMM from another; hashable.
            row: makes what is written of one that is new.

        Raises:
            OSError: the files cannot be made or written.
        """
        with self._lock:
            place = self._places.get(key)
            if place is None:
                place = self._new(key, row)
            self._counts[place] += 1

    def _new(self, key: Any, row: Callable[[], dict[str, Any]]) -> int:
        if self._rows < 0:
            self._open()
        place = len(self._places)
        if place < MOST - 1:
            self._write(row())
            self._places[key] = place
            return place
        # The last place is for all that come when the others are taken.
        if not self._counts[MOST - 1]:
            self._write({"more": True})
        return MOST - 1

    def _write(self, row: dict[str, Any]) -> None:
        os.write(self._rows, (json.dumps(row) + "\n").encode())

    def _open(self) -> None:
        # A process that becomes another program keeps its number.
        name = os.path.join(self._folder, f"{os.getpid()}-{time.time_ns()}")
        create = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        counts = os.open(f"{name}.counts", os.O_RDWR | create, 0o600)
        try:
            # Not a hole: on a full disk, counting in one would kill the program.
            os.posix_fallocate(counts, 0, MOST * _COUNT_BYTES)
            shared = mmap.mmap(counts, MOST * _COUNT_BYTES)
        finally:
            os.close(counts)
        self._counts = memoryview(shared).cast("Q")
        self._rows = os.open(f"{name}.jsonl", os.O_WRONLY | create, 0o600)
