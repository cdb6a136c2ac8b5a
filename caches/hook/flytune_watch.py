"""Lets flytune's ledger into each Python process of a command that compiles.

The ledger is flytune's own, of the very flytune that runs the command; a Python which
lacks it is shown where it is.

Standard library alone, and nothing newer than Python 3.10: as the hook.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

if __package__:
    from flytune.caches.hook.flytune_imports import AfterImport
else:  # In the child of a command, where this folder is on the path.
    from flytune_imports import (  # type: ignore[import-not-found, no-redef]
        AfterImport,
    )

PACKAGES = "packages"
"""The folder of links to flytune, in the one that a process writes into."""
_INDUCTOR = "torch._inductor"


class WatchImport(AfterImport):
    """Begins to watch when Inductor is imported."""

    def __init__(self, folder: str) -> None:
        super().__init__((_INDUCTOR,))
        self._folder = folder

    def loaded(self, module: Any) -> None:
        """Start the ledger; whatever fails there, the program goes on."""
        self.leave()
        try:
            _watched(self._folder)
        except Exception as error:
            self._failed(f"{type(error).__name__}: {error}")

    def unwatchable(self, fullname: str) -> None:
        """Say that nothing is seen here."""
        self.leave()
        self._failed(f"cannot watch the import of {fullname}")

    def _failed(self, text: str) -> None:
        path = os.path.join(self._folder, f"{os.getpid()}-{time.time_ns()}.jsonl")
        rows = (
            ("process", os.getpid(), os.getppid(), list(sys.argv)),
            ("event", ["unseen", text, 0.0, []]),
        )
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        except OSError as error:
            print(f"flytune: the ledger cannot be written: {error}", file=sys.stderr)


def _watched(folder: str) -> None:
    if sys.hexversion < 0x030B0000:
        raise RuntimeError("the ledger needs Python 3.11 or newer")
    packages = os.path.join(folder, PACKAGES)
    try:
        found = importlib.import_module("flytune.caches")
    except ModuleNotFoundError:
        sys.path.append(packages)
        found = importlib.import_module("flytune.caches")
    wanted = os.path.realpath(os.path.join(packages, "flytune", "caches"))
    here = os.path.realpath(next(iter(found.__path__)))
    if here != wanted:
        raise RuntimeError(f"another flytune is installed here: {here}")
    importlib.import_module("flytune.caches.watched").start(folder)
