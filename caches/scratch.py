"""A folder beside what is written, and what killed processes left there."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flytune.caches.locks import lock_folder

TEMPORARY = ".flytune-"
"""In the name of what is being written, between the final name and random letters."""
_UNLOCKED = -1


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Give an empty folder on the file system of `path`, which is then removed.

    It is locked meanwhile, so that those of processes that were killed are known, and
    are removed first.

    Raises:
        OSError: it cannot be made.
    """
    for rubbish in leftovers(path):
        _remove(rubbish)
    folder, held = _locked_folder(path)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held != _UNLOCKED:
            os.close(held)


def leftovers(path: Path) -> list[Path]:
    """Return what is being written beside `path` for it, or was by a killed process.

    Raises:
        OSError: the folder cannot be read.
    """
    start = f".{path.name}{TEMPORARY}"
    return [other for other in path.parent.iterdir() if other.name.startswith(start)]


def make_beside(path: Path) -> Path:
    """Make an empty folder for what will take the name of `path`, not locked.

    Raises:
        OSError: it cannot be made.
    """
    return Path(tempfile.mkdtemp(prefix=f".{path.name}{TEMPORARY}", dir=path.parent))


def _locked_folder(path: Path) -> tuple[Path, int]:
    while True:
        folder = make_beside(path)
        try:
            held = lock_folder(folder)
        except (BlockingIOError, FileNotFoundError):
            # Another process took it for a leftover, before it was locked.
            continue
        except OSError:
            # A file system without locks: nobody takes it for one.
            return folder, _UNLOCKED
        if folder.exists():
            return folder, held
        os.close(held)


def _remove(folder: Path) -> None:
    try:
        held = lock_folder(folder)
    except OSError:
        return
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(held)
