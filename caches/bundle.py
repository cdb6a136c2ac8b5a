"""A bundle on disk, a directory or one `.tar.zst`: read and placed after checks."""

import errno
import fcntl
import functools
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol, Self

from flytune.caches.archive import COPY_BYTES, BundleError, Fault, members
from flytune.caches.codes import Code
from flytune.caches.manifest import (
    MANIFEST_LIMIT_BYTES,
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    check_path,
    sha256_hex,
)
from flytune.shapes.errors import FlytuneError

ARCHIVE_SUFFIX = ".tar.zst"
TEMPORARY = ".flytune-"
"""In the name of what is being written, between the final name and random letters."""
# Of <linux/fs.h>: share another file's blocks, each copied when it is written.
_FICLONE = 0x40049409
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Content(Protocol):
    def read(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose manifest was read and checked; its files were not, yet."""

    path: Path
    manifest: Manifest
    digest: str
    """SHA-256 of the manifest's bytes, which names the bundle."""
    text: bytes = field(repr=False)
    """The manifest's bytes."""

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Read and check the manifest alone.

        Raises:
            FlytuneError: there is no bundle, or its manifest breaks a rule.
        """
        path = Path(path)
        for name, size_bytes, content in _files(path):
            if name != MANIFEST_NAME:
                break
            text = _manifest_text(size_bytes, content)
            return cls(path, Manifest.from_json(text), sha256_hex(text), text)
        raise BundleError(Fault.FIRST, path)

    def place(
        self,
        into: Path,
        *,
        only: Collection[str] | None = None,
        finish: Callable[[Path], None] | None = None,
    ) -> None:
        """Check every file of the bundle and write it, all or nothing.

        Args:
            into: an absent or empty directory; its parent exists. What is written is
                readable by the owner alone.
            only: the paths to write, where that is not all; all are checked.
            finish: called with the directory before it takes the name of `into`.

        Raises:
            FlytuneError: a file breaks a rule of the bundle, or cannot be written.
        """
        wanted = frozenset(self.manifest.files if only is None else only)
        with writing(into):
            sizes = (self.manifest.files[path].size_bytes for path in wanted)
            _check_room(into.parent, sum(sizes))
            prefix = f".{into.name}{TEMPORARY}"
            temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=into.parent))
            try:
                self._write_all(temporary, wanted)
                if finish is not None:
                    finish(temporary)
                temporary.rename(into)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise

    def _write_all(self, directory: Path, wanted: frozenset[str]) -> None:
        missing = {MANIFEST_NAME, *self.manifest.files}
        for name, size_bytes, content in _files(self.path):
            check_path(name)
            if name not in missing:
                known = name == MANIFEST_NAME or name in self.manifest.files
                raise BundleError(Fault.TWICE if known else Fault.UNLISTED, repr(name))
            missing.remove(name)
            if name == MANIFEST_NAME:
                if sha256_hex(_manifest_text(size_bytes, content)) != self.digest:
                    raise BundleError(Fault.DIGEST, name)
                continue
            entry = self.manifest.files[name]
            if size_bytes != entry.size_bytes:
                raise BundleError(Fault.SIZE, repr(name))
            _copy(name, entry, content, directory if name in wanted else None)
        if missing:
            raise BundleError(Fault.MISSING, repr(min(missing)))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into one clear line.

    Raises:
        FlytuneError: the disk is full, or something cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise FlytuneError(f"disk is full: {path}", code=Code.DISK_FULL) from error
        place = error.filename or path
        raise FlytuneError(
            f"cannot write: {place}: {error.strerror}", code=Code.UNWRITABLE
        ) from error


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are absent, for the owner alone.

    `Path.mkdir` gives its mode to the last one only.

    Raises:
        OSError: one cannot be made.
    """
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


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


def _files(path: Path) -> Iterator[tuple[str, int, _Content]]:
    """Yield name, size in bytes and content of each file, the manifest first."""
    try:
        if not path.is_dir():
            with path.open("rb") as file:
                for member in members(_Input(path, file)):
                    yield member.name, member.size_bytes, member.content
            return
        yield from _folder_file(path, MANIFEST_NAME)
        for name in plain_files(path):
            if name != MANIFEST_NAME:
                yield from _folder_file(path, name)
    except OSError as error:
        raise _unreadable(path, error) from error


def _folder_file(folder: Path, name: str) -> Iterator[tuple[str, int, _Content]]:
    with _open_plain(folder / name) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        yield name, size_bytes, _FileContent(_Input(folder / name, file))


def _open_plain(path: Path) -> IO[bytes]:
    # Not to follow a link, nor hang on a pipe, that replaced the file since the walk.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
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

    def share_with(self, target: IO[bytes]) -> bool:
        """Let an empty file hold the same blocks, where the file system can do that."""
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, self._source.fileno())
        except OSError:
            return False
        return True


def _unreadable(path: Path, error: OSError) -> FlytuneError:
    return FlytuneError(
        f"cannot read bundle: {path}: {error.strerror}", code=Code.UNREADABLE
    )


def _manifest_text(size_bytes: int, content: _Content) -> bytes:
    if size_bytes > MANIFEST_LIMIT_BYTES:
        raise FlytuneError(
            f"manifest is too large: {size_bytes} bytes", code=Code.MANIFEST
        )
    parts = []
    while part := content.read():
        parts.append(part)
    return b"".join(parts)


def _copy(
    name: str, entry: FileEntry, content: _Content, directory: Path | None
) -> None:
    digest = hashlib.sha256()
    left = entry.size_bytes
    target = None if directory is None else directory / name
    if target is not None:
        make_private(target.parent)
    with open(os.devnull if target is None else target, "w+b") as file:
        shared = (
            target is not None
            and isinstance(content, _FileContent)
            and content.share_with(file)
        )
        # What is checked is what was placed: the source may change by now.
        read = functools.partial(file.read, COPY_BYTES) if shared else content.read
        while part := read():
            left -= len(part)
            if left < 0:
                raise BundleError(Fault.SIZE, repr(name))
            digest.update(part)
            if not shared:
                file.write(part)
        if target is not None:
            os.fchmod(file.fileno(), 0o600)
    if left or digest.hexdigest() != entry.sha256:
        raise BundleError(Fault.SIZE if left else Fault.DIGEST, repr(name))


def _check_room(directory: Path, size_bytes: int) -> None:
    free_bytes = shutil.disk_usage(directory).free
    if size_bytes > free_bytes:
        raise FlytuneError(
            f"disk is too full: {directory}: {size_bytes} bytes needed, "
            f"{free_bytes} free",
            code=Code.DISK_FULL,
        )
