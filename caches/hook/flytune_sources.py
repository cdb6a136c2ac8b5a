"""The keys of torch's and Triton's own sources, known without reading those again.

Inductor's keys hold a digest of torch's sources and Triton's keys one of Triton's whole
library, half a gigabyte: most of what a process that compiles nothing waits for. The
first process of an installed bundle keeps both there, beside what the files look like;
later ones compare the looks: path, size and time of change of each file.

The standard library alone, and nothing newer than Python 3.10.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

if __package__:
    from flytune.caches.hook.flytune_files import read_plain
else:  # In the child of a command, where this folder is on the path.
    from flytune_files import (  # type: ignore[import-not-found, no-redef]
        read_plain,
    )

KNOWN_NAME = "sources.json"
# Folders that hold no Python of torch's own.
_SKIPPED = ("__pycache__", "bin", "include", "lib", "share")


def torch_key(codecache: Any, directory: str) -> str:
    """Return the hex of torch's key as `codecache.torch_key` would, and let it know.

    Args:
        codecache: the module `torch._inductor.codecache`, just imported.
        directory: of an installed bundle.
    """
    root = os.path.dirname(os.path.dirname(codecache.__file__))
    known = _Known(directory, "torch", f"{sys.modules['torch'].__version__} {root}")
    key = known.get(lambda: str(codecache.torch_key().hex()), _files(root))
    setter = getattr(codecache.torch_key, "set", None)
    if known.was_known and setter is not None:
        setter(bytes.fromhex(key))
    return key


def keep_triton_key(directory: str) -> Callable[[], None]:
    """Let Triton's key be known from now on; return what sets that back.

    It is computed when it is first asked for, by Triton itself, if it is not known.
    """
    modules: list[Any] = [
        module
        for name in ("triton.runtime.cache", "torch._inductor.runtime.triton_compat")
        if callable(getattr(module := sys.modules.get(name), "triton_key", None))
    ]
    if len(modules) < 2:
        return lambda: None
    compute = modules[0].triton_key
    root = os.path.dirname(os.path.dirname(modules[0].__file__))
    known = _Known(directory, "triton", root)

    def triton_key() -> str:
        return known.get(compute, _files(root))

    for module in modules:
        module.triton_key = triton_key

    def undo() -> None:
        for module in modules:
            module.triton_key = compute

    return undo


class _Known:
    """One key with the looks of the files that it was made of, on disk."""

    def __init__(self, directory: str, name: str, what: str) -> None:
        self._path = os.path.join(directory, KNOWN_NAME)
        self._name, self._what = name, what
        self._key = ""
        self.was_known = False

    def get(self, compute: Callable[[], str], files: Iterator[Any]) -> str:
        """Return the key: this process's, the stored one if nothing changed, or new."""
        if self._key:
            return self._key
        looks = _looks(self._what, files)
        stored = self._read().get(self._name)
        if isinstance(stored, list) and stored == _row(looks, *stored[1:2]):
            self._key, self.was_known = str(stored[1]), True
        else:
            self._key = compute()
            self._keep(looks)
        return self._key

    def _read(self) -> Any:
        try:
            row = json.loads(read_plain(self._path))
        except (OSError, ValueError, RecursionError):
            return {}
        return row if isinstance(row, dict) else {}

    def _keep(self, looks: str) -> None:
        row = {**self._read(), self._name: _row(looks, self._key)}
        # Of two that write it at once one is torn, and its digest tells.
        part = f"{self._path}.part"
        try:
            with open(part, "w", encoding="utf-8") as file:
                json.dump(row, file)
            os.replace(part, self._path)
        except OSError:
            # Read-only, or full: the next process computes it again.
            return


def _row(looks: str, key: Any = "") -> list[Any]:
    """Return what is stored of a key: a key with another bit would miss for ever."""
    digest = hashlib.sha256(f"{looks} {key}".encode()).hexdigest()
    return [looks, key, digest]


def _looks(what: str, files: Iterator[Any]) -> str:
    rows = []
    for entry in files:
        try:
            status = entry.stat()
        except OSError:
            # A link to nowhere, whose own looks are all that there is.
            status = entry.stat(follow_symlinks=False)
        rows.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}")
    text = "\n".join([what, *sorted(rows)])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _files(root: str) -> Iterator[Any]:
    """Yield the files below a folder that a digest of its sources may hold."""
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    yield entry
                elif entry.name not in _SKIPPED:
                    folders.append(entry.path)
