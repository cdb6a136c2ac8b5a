"""Packing a directory of caches as a bundle."""

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from flytune.caches.archive import ArchiveWriter
from flytune.caches.bundle import ARCHIVE_SUFFIX, TEMPORARY, plain_files, writing
from flytune.caches.manifest import MANIFEST_NAME, FileEntry, Manifest
from flytune.shapes.errors import FlytuneError


def pack(staging: Path, manifest: Manifest, out: Path) -> Path:
    """Pack the files of a directory as a bundle and return its path.

    Args:
        staging: is only read; its own manifest, if any, is left out.
        manifest: its `files` are filled in here.
        out: a `.tar.zst`, else a directory; published by rename when whole.

    Raises:
        FlytuneError: `out` exists, a staged file is a link or a device or changed
            while it was packed, or the disk is full.
    """
    if out.exists() or out.is_symlink():
        raise FlytuneError(f"output exists: {out}")
    if not staging.is_dir():
        raise FlytuneError(f"no directory to pack: {staging}")
    with writing(out):
        files = {path: _entry(staging / path) for path in _staged(staging)}
        text = replace(manifest, files=files).to_json()
        # What would be refused when read must not be published.
        Manifest.from_json(text)
        if out.name.endswith(ARCHIVE_SUFFIX):
            _pack_archive(staging, text, files, out)
        else:
            _pack_directory(staging, text, files, out)
    return out


def _pack_archive(
    staging: Path, text: bytes, files: Mapping[str, FileEntry], out: Path
) -> None:
    descriptor, name = tempfile.mkstemp(
        prefix=f".{out.name}{TEMPORARY}", dir=out.parent
    )
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            archive = ArchiveWriter(file)
            archive.add(MANIFEST_NAME, len(text), io.BytesIO(text))
            for path, entry in files.items():
                with _unchanged(staging / path, entry) as content:
                    archive.add(path, entry.size_bytes, content)
            archive.finish()
            file.flush()
            # A temporary file is private; a bundle is for others to read.
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        temporary.rename(out)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _pack_directory(
    staging: Path, text: bytes, files: Mapping[str, FileEntry], out: Path
) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}{TEMPORARY}", dir=out.parent))
    try:
        (temporary / MANIFEST_NAME).write_bytes(text)
        for path, entry in files.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            with (
                _unchanged(staging / path, entry) as content,
                (temporary / path).open("wb") as file,
            ):
                shutil.copyfileobj(content, file)
        temporary.chmod(0o755)
        temporary.rename(out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _staged(staging: Path) -> tuple[str, ...]:
    paths = [path for path in plain_files(staging) if path != MANIFEST_NAME]
    # What is read alone, keys and records, comes before the large part.
    return tuple(sorted(paths, key=lambda path: (path.startswith("inductor/"), path)))


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileEntry(digest.hexdigest(), file.tell())


@contextmanager
def _unchanged(path: Path, entry: FileEntry) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        yield file
        file.seek(0)
        if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
            raise FlytuneError(f"file changed while it was packed: {path}")
