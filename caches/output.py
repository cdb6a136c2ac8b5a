"""A file that a person names, and what may stand there already."""

import errno
import os
import stat
from pathlib import Path

from flytune.caches.bundle import writing
from flytune.caches.scratch import beside


def check_writable(path: Path) -> None:
    """Check that a file may be written, before the work that it is to tell of.

    Raises:
        FlytuneError: its folder is absent or cannot be written.
    """
    if _in_place(path):
        return
    with writing(path, output=True), beside(path.resolve()):
        pass


def write_through(path: Path, content: bytes) -> None:
    """Write to what a path leads to: a file whole, a device or a pipe as it stands.

    A file takes its name by rename, so that no reader sees a part of it, and keeps the
    mode that it had. A link stays one, and what it leads to is replaced.

    Raises:
        FlytuneError: it cannot be written, or is a file that nobody may write to.
    """
    with writing(path, output=True):
        if _in_place(path):
            path.write_bytes(content)
            return
        mode = path.stat().st_mode if path.exists() else None
        # Root may write to what its owner keeps from being written to: not so here.
        if mode is not None and not (mode & 0o222 and os.access(path, os.W_OK)):
            denied = errno.EACCES
            raise PermissionError(denied, os.strerror(denied), str(path))
        whole = path.resolve()
        with beside(whole) as folder:
            part = folder / whole.name
            part.write_bytes(content)
            if mode is not None:
                part.chmod(stat.S_IMODE(mode))
            part.replace(whole)


def _in_place(path: Path) -> bool:
    """Whether it is no file that may be replaced: a pipe, or a stream of this process.

    What a stream goes to may be a file, which others write to as well.
    """
    return path.exists() and (not path.is_file() or path.is_relative_to("/dev"))
