"""Files that a command writes beside what it prints."""

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


def write_file(path: Path, text: str) -> None:
    """Write a text as UTF-8, by rename, so that no reader sees a part of it.

    Raises:
        FlytuneError: it cannot be written, or the disk is full.
    """
    with writing(path, output=True):
        if _in_place(path):
            path.write_text(text, encoding="utf-8")
            return
        # Where a link points, which stays one.
        whole = path.resolve()
        with beside(whole) as folder:
            part = folder / whole.name
            part.write_text(text, encoding="utf-8")
            part.replace(whole)


def _in_place(path: Path) -> bool:
    """Whether it is no file that may be replaced: a pipe, or a stream of this process.

    What a stream goes to may be a file, which others write to as well.
    """
    return path.exists() and (not path.is_file() or path.is_relative_to("/dev"))
