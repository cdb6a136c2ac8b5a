"""Locks between the processes that install, serve and clear away."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def lock_of(directory: Path) -> Path:
    """Return the file by which an installed directory is locked while it changes."""
    return directory.with_name(f".{directory.name}.lock")


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock, whose file is made, against every other process.

    Raises:
        OSError: the file cannot be made, or another process holds it and `wait` is
            not set.
    """
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # Removed while this one waited: others lock a new file.
            if not _is_open(path, descriptor):
                continue
            yield
            return
        finally:
            os.close(descriptor)


def lock_folder(folder: Path) -> int:
    """Lock a folder against every other process; return the descriptor that holds it.

    Raises:
        OSError: it is no folder but a link, say, or another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_open(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
