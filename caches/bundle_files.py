"""The files of a bundle, a directory's or an archive's, as a stream to be checked."""

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from flytune.caches.archive import COPY_BYTES, BundleError, Fault, members
from flytune.caches.codes import Code
from flytune.caches.manifest import MANIFEST_NAME, SIGNATURE_NAME
from flytune.shapes.errors import FlytuneError

# Of <linux/fs.h>: share another file's blocks, each copied when it is written.
_FICLONE = 0x40049409


class Content(Protocol):
    """What is left of one file."""

    def read(self) -> bytes:
        """Return the next part, empty at the end."""


def files(path: Path) -> Iterator[tuple[str, int, Content]]:
    """Yield name, size in bytes and content of each file, the manifest first.

    A folder's signature comes second; an archive's own order is to be checked.

    Raises:
        FlytuneError: it cannot be read, or is no plain file or archive.
    """
    try:
        if not path.is_dir():
            with _open_plain(path, link=True) as file:
                for member in members(_Input(path, file)):
                    yield member.name, member.size_bytes, member.content
            return
        if not os.path.lexists(path / MANIFEST_NAME):
            raise FlytuneError(
                f"cannot read bundle: no {MANIFEST_NAME} in folder: {path}",
                code=Code.UNREADABLE,
            )
        yield from _folder_file(path, MANIFEST_NAME)
        if os.path.lexists(path / SIGNATURE_NAME):
            yield from _folder_file(path, SIGNATURE_NAME)
        for name in plain_files(path):
            if name not in (MANIFEST_NAME, SIGNATURE_NAME):
                yield from _folder_file(path, name)
    except OSError as error:
        raise _unreadable(path, error) from error


def whole(name: str, size_bytes: int, content: Content) -> bytes:
    """Return all of a file, which may claim another size than it has.

    Raises:
        BundleError: it does, or cannot be read to its end.
    """
    parts = []
    left = size_bytes
    while left >= 0 and (part := content.read()):
        left -= len(part)
        parts.append(part)
    if left:
        raise BundleError(Fault.SIZE, name)
    return b"".join(parts)


def share(content: Content, target: IO[bytes]) -> bool:
    """Let an empty file hold a file's very blocks, where the file system can do that.

    Returns whether it does; nothing was read of the content.
    """
    if not isinstance(content, _FileContent):
        return False
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, content.fileno())
    except OSError:
        return False
    return True


def plain_files(directory: Path) -> tuple[str, ...]:
    """Return the sorted relative paths of the files under a directory.

    Raises:
        BundleError: there is a link, a device or a pipe among them.
        OSError: a folder cannot be read.
    """
    paths = []
    folders = [directory]
    while folders:
        for entry in os.scandir(folders.pop()):
            relative = Path(entry.path).relative_to(directory).as_posix()
            if entry.is_symlink():
                raise BundleError(Fault.LINK, repr(relative))
            if entry.is_dir():
                folders.append(Path(entry.path))
            elif entry.is_file():
                paths.append(relative)
            else:
                raise BundleError(Fault.DEVICE, repr(relative))
    return tuple(sorted(paths))


def _folder_file(folder: Path, name: str) -> Iterator[tuple[str, int, Content]]:
    with _open_plain(folder / name) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        yield name, size_bytes, _FileContent(_Input(folder / name, file))


def _open_plain(path: Path, *, link: bool = False) -> IO[bytes]:
    # Not to follow a link, nor hang on a pipe, that replaced the file since the walk.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if link else os.O_NOFOLLOW)
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise BundleError(Fault.DEVICE, path)
    return file


class _Input:
    """A file to read, whose faults are the reader's and not the writer's."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file

    def read(self, size_bytes: int) -> bytes:
        try:
            return self._file.read(size_bytes)
        except OSError as error:
            raise _unreadable(self._path, error) from error

    def fileno(self) -> int:
        return self._file.fileno()


class _FileContent:
    def __init__(self, source: _Input) -> None:
        self._source = source

    def read(self) -> bytes:
        return self._source.read(COPY_BYTES)

    def fileno(self) -> int:
        return self._source.fileno()


def _unreadable(path: Path, error: OSError) -> FlytuneError:
    return FlytuneError(
        f"cannot read bundle: {path}: {error.strerror}", code=Code.UNREADABLE
    )
