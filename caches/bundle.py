"""A bundle on disk, a directory or one `.tar.zst`: read and placed after checks."""

import errno
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from flytune.caches.archive import COPY_BYTES, BundleError, Fault
from flytune.caches.bundle_files import Content, files, share, whole
from flytune.caches.codes import Code
from flytune.caches.manifest import (
    MANIFEST_LIMIT_BYTES,
    MANIFEST_NAME,
    SIGNATURE_NAME,
    FileEntry,
    Manifest,
    check_path,
    is_digest,
    sha256_hex,
)
from flytune.caches.scratch import make_beside
from flytune.caches.signature import SIGNATURE_LIMIT_BYTES, Envelope
from flytune.shapes.errors import FlytuneError

ARCHIVE_SUFFIX = ".tar.zst"
# As container registries write it: the manifest's digest after the bundle's name.
_PIN = re.compile(r"(.+)@sha256:(.*)", re.DOTALL)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose manifest was read and checked; its files were not, yet."""

    path: Path
    manifest: Manifest
    digest: str
    """SHA-256 of the manifest's bytes, which names the bundle."""
    text: bytes = field(repr=False)
    """The manifest's bytes."""
    envelope: Envelope | None
    """Who signed it; nothing of that is verified: `trust.admit` does."""
    signature: bytes | None = field(repr=False)
    """The envelope's bytes."""
    pinned: bool
    """Whether it was asked for by its digest."""

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Read and check the manifest, and read the signature if there is one.

        Args:
            path: `B` or `B@sha256:DIGEST`, where the manifest must have that digest.

        Raises:
            FlytuneError: there is no bundle, its manifest breaks a rule or has
                another digest, or its signature is malformed.
        """
        path, pin = _split_pin(path)
        stream = files(path)
        name, size_bytes, content = next(stream, ("", 0, None))
        if content is None or name != MANIFEST_NAME:
            raise BundleError(Fault.FIRST, path)
        text = _manifest_text(size_bytes, content)
        digest = sha256_hex(text)
        if pin not in (None, digest):
            raise BundleError(Fault.PIN, digest)
        manifest = Manifest.from_json(text)
        envelope, signature = None, None
        name, size_bytes, content = next(stream, ("", 0, None))
        if content is not None and name == SIGNATURE_NAME:
            signature = _signature_text(size_bytes, content)
            envelope = Envelope.from_json(signature)
        pinned = pin is not None
        return cls(path, manifest, digest, text, envelope, signature, pinned)

    def heads(self) -> dict[str, bytes]:
        """Return the manifest and, if there is one, the signature, byte for byte."""
        if self.signature is None:
            return {MANIFEST_NAME: self.text}
        return {MANIFEST_NAME: self.text, SIGNATURE_NAME: self.signature}

    def check(self) -> None:
        """Check every file of the bundle and write none.

        Raises:
            FlytuneError: a file breaks a rule of the bundle.
        """
        self._write_all(None, frozenset())

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
            temporary = make_beside(into)
            try:
                self._write_all(temporary, wanted)
                if finish is not None:
                    finish(temporary)
                temporary.rename(into)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise

    def _write_all(self, directory: Path | None, wanted: frozenset[str]) -> None:
        missing = {MANIFEST_NAME, *self.manifest.files}
        for number, (name, size_bytes, content) in enumerate(files(self.path)):
            check_path(name)
            if name == SIGNATURE_NAME:
                if number != 1:
                    raise BundleError(Fault.SECOND, name)
                _signature_text(size_bytes, content)
                continue
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
def writing(path: Path, *, output: bool = False) -> Iterator[None]:
    """Turn an OSError of the block into one clear line.

    Args:
        output: whether a user has chosen the path, so that another is all that helps.

    Raises:
        FlytuneError: the disk is full, or something cannot be written.
    """
    try:
        yield
    except ConnectionError:
        # No disk's.
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise FlytuneError(f"disk is full: {path}", code=Code.DISK_FULL) from error
        place = error.filename or path
        raise FlytuneError(
            f"cannot write: {place}: {error.strerror}",
            hint="choose another path" if output else None,
            code=Code.UNWRITABLE,
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


def _manifest_text(size_bytes: int, content: Content) -> bytes:
    if size_bytes > MANIFEST_LIMIT_BYTES:
        raise FlytuneError(
            f"manifest is too large: {size_bytes} bytes", code=Code.MANIFEST
        )
    return whole(MANIFEST_NAME, size_bytes, content)


def _signature_text(size_bytes: int, content: Content) -> bytes:
    if size_bytes > SIGNATURE_LIMIT_BYTES:
        raise BundleError(Fault.SIGNATURE_SIZE, f"{size_bytes} bytes")
    return whole(SIGNATURE_NAME, size_bytes, content)


def _split_pin(path: Path | str) -> tuple[Path, str | None]:
    found = _PIN.fullmatch(str(path))
    if found is None:
        return Path(path), None
    if not is_digest(found[2]):
        raise FlytuneError(
            f"pin is not the 64 digits of a SHA-256: `{found[2][:99]}`", code=Code.PIN
        )
    return Path(found[1]), found[2]


def _copy(
    name: str, entry: FileEntry, content: Content, directory: Path | None
) -> None:
    digest = hashlib.sha256()
    left = entry.size_bytes
    target = None if directory is None else directory / name
    if target is not None:
        make_private(target.parent)
    with open(os.devnull if target is None else target, "w+b") as file:
        shared = target is not None and share(content, file)
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
