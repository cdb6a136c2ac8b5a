"""List the candidates of a command: what each of its processes does besides.

Each list that Inductor would choose from is written down, and the library's candidate
is given to it alone: nothing is timed, and the command runs on.
"""

import functools
import importlib.util
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.compat import torch_version, wrap
from flytune.caches.inductor import system_info, torch_key, triton_key
from flytune.caches.ledger import Ledger
from flytune.caches.ledger_hooks import SELECT
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import CandidateList, Enumeration
from flytune.tuner.probe import Probe

_LISTS = ".lists"
_GRAPH = "torch._inductor.graph"
# Modules are named as in the whole program, with their layers' numbers as "*".
_PIECE = "model"


class FiledProbe(Probe):
    """Writes each list into a file of this process as it is seen."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        super().__init__()
        self.piece = _PIECE
        self._folder, self._ledger = folder, ledger
        self._path: Path | None = None
        # A forked child would write into its parent's file.
        os.register_at_fork(after_in_child=self._forget)

    def take(self, make: Callable[[], CandidateList]) -> None:
        """Write a list; whatever fails there, the program goes on."""
        try:
            self._write(make())
        except Exception as error:  # the ledger holds it, and the build ends with it
            self._ledger.unseen(error)

    def write_keys(self) -> None:
        """Write what the lists' keys are of, once, before the first of them."""
        if self._path is not None:
            return
        keys = _software(), torch_key(), _triton_key(), system_info()
        name = f"{os.getpid()}-{time.time_ns()}{_LISTS}"
        self._path = self._folder / name
        self._append(keys)

    def _forget(self) -> None:
        self._path = None

    def _write(self, offered: CandidateList) -> None:
        self.write_keys()
        self._append(offered)

    def _append(self, value: Any) -> None:
        assert self._path is not None, "named by now"
        with self._path.open("ab") as file:
            file.write(pickle.dumps(value))


def actions(
    folder: Path, ledger: Ledger, request: Mapping[str, Any]
) -> dict[str, Callable[[], None]]:
    """Return what is done when Inductor's modules are imported, for `watched.start`."""
    probe = FiledProbe(folder, ledger)
    flydsl = request["flydsl"]
    return {
        SELECT: functools.partial(probe.arm, flydsl=flydsl, to_the_end=True),
        _GRAPH: functools.partial(_before_lowering, probe, ledger),
    }


def _before_lowering(probe: FiledProbe, ledger: Ledger) -> None:
    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                probe.write_keys()
            except Exception as error:  # as in `take`
                ledger.unseen(error)
            return inner(*args, **kwargs)

        return run

    wrap(_GRAPH, "GraphLowering.run", wrapper)


def read_lists(folder: Path) -> Enumeration:
    """Join what the processes wrote.

    Raises:
        FlytuneError: none compiled a graph, or they are of different software, or of
            other than this process's.
    """
    lists: list[CandidateList] = []
    keys: list[Any] = []
    for path in sorted(folder.glob(f"*{_LISTS}")):
        # None where its process was killed as it began.
        if values := tuple(_values(path)):
            keys.append(values[0])
            lists += values[1:]
    if not keys:
        raise FlytuneError(
            "the command compiles nothing with Inductor, so that there is nothing to "
            "bake",
            hint="a Python that begins with -S, -I or -E is not seen",
        )
    if any(key != keys[0] for key in keys):
        raise FlytuneError("processes of the command run on different software")
    software, *own = keys[0]
    if software != _software():
        raise FlytuneError(
            f"the command runs on {software}, and flytune on {_software()}",
            hint="build with a flytune that is installed where the command's Python is",
        )
    return Enumeration(tuple(lists), *own)


def _values(path: Path) -> Iterator[Any]:
    """Yield what was pickled, but a torn end."""
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                return


def _software() -> str:
    version = ".".join(map(str, sys.version_info[:2]))
    return f"Python {version} and torch {torch_version()}"


def _triton_key() -> str | None:
    return triton_key() if importlib.util.find_spec("triton") else None
