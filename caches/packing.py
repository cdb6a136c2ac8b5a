"""Packing a directory of caches as a bundle, and signing one."""

import hashlib
import io
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from flytune.caches.archive import ArchiveWriter, BundleError, Fault
from flytune.caches.bundle import ARCHIVE_SUFFIX, Bundle, writing
from flytune.caches.bundle_files import plain_files
from flytune.caches.key_files import key_id
from flytune.caches.manifest import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    FileEntry,
    Manifest,
    sha256_hex,
)
from flytune.caches.scratch import beside
from flytune.caches.signature import SIGNATURE_LIMIT_BYTES, Envelope, statement
from flytune.shapes.errors import FlytuneError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def pack(
    staging: Path,
    manifest: Manifest,
    out: Path,
    *,
    keys: Sequence["Ed25519PrivateKey"] = (),
) -> Path:
    """Pack the files of a directory as a bundle and return its path.

    Args:
        staging: is only read; its own manifest and signature, if any, are left out.
        manifest: its `files` are filled in here.
        out: a `.tar.zst`, else a directory; published by rename when whole.
        keys: those that sign it.

    Raises:
        FlytuneError: `out` exists, a staged file is a link or a device or changed
            while it was packed, or the disk is full.
    """
    if not staging.is_dir():
        raise FlytuneError(f"no directory to pack: {staging}")
    with writing(out, output=True), beside(out) as scratch:
        check_absent(out)
        files = {path: file_entry(staging / path) for path in _staged(staging)}
        text = replace(manifest, files=files).to_json()
        # What would be refused when read must not be published.
        Manifest.from_json(text)
        heads = {MANIFEST_NAME: text}
        if keys:
            heads[SIGNATURE_NAME] = _envelope(text, manifest, None, keys)
        _publish(staging, heads, files, out, scratch)
    return out


def sign(bundle: Bundle, key: "Ed25519PrivateKey") -> None:
    """Add a signature to a bundle, in place of an earlier one of the same key.

    Every file is checked first. An archive is written anew beside and renamed.

    Raises:
        FlytuneError: a file breaks a rule of the bundle, its signature is over
            something else, or it cannot be written.
    """
    path = bundle.path.resolve()
    text = _envelope(bundle.text, bundle.manifest, bundle.envelope, [key])
    with writing(path), beside(path) as scratch:
        if path.is_dir():
            bundle.check()
            # Not in the bundle, which must hold nothing else if this is killed.
            part = scratch / SIGNATURE_NAME
            part.write_bytes(text)
            part.replace(path / SIGNATURE_NAME)
            return
        placed, part = scratch / "placed", scratch / "part"
        bundle.place(placed)
        heads = {**bundle.heads(), SIGNATURE_NAME: text}
        names = _in_order(bundle.manifest.files)
        files = {name: bundle.manifest.files[name] for name in names}
        _pack_archive(placed, heads, files, part, path.stat().st_mode & 0o777)
        part.replace(path)


def _envelope(
    text: bytes,
    manifest: Manifest,
    earlier: Envelope | None,
    keys: Sequence["Ed25519PrivateKey"],
) -> bytes:
    """Return the signature file of a manifest."""
    payload = statement(sha256_hex(text), manifest.provenance)
    # Whoever signs vouches for the payload: it must be what they would have written.
    if earlier is not None and earlier.payload != payload:
        raise BundleError(Fault.FOREIGN, SIGNATURE_NAME)
    envelope = earlier or Envelope(payload, ())
    for key in keys:
        envelope = envelope.signed(key_id(key.public_key()), key)
    signed = envelope.to_json()
    if len(signed) > SIGNATURE_LIMIT_BYTES:
        raise BundleError(Fault.SIGNATURE_SIZE, f"{len(signed)} bytes")
    return signed


def check_absent(out: Path) -> None:
    """Check that nothing has the name of an output.

    Raises:
        FlytuneError: something has.
    """
    if out.exists() or out.is_symlink():
        raise FlytuneError(
            f"output exists: {out}", hint="remove it, or give another --out"
        )


def publish(staging: Path, out: Path) -> Path:
    """Publish a directory that is a bundle already, its heads byte for byte.

    Args:
        staging: is only read.
        out: as for `pack`.

    Raises:
        FlytuneError: `out` exists, the directory breaks a rule of a bundle, or the disk
            is full.
    """
    bundle = Bundle.open(staging)
    bundle.check()
    with writing(out, output=True), beside(out) as scratch:
        check_absent(out)
        heads, names = bundle.heads(), _in_order(bundle.manifest.files)
        files = {name: bundle.manifest.files[name] for name in names}
        _publish(staging, heads, files, out, scratch)
    return out


def _publish(
    staging: Path,
    heads: Mapping[str, bytes],
    files: Mapping[str, FileEntry],
    out: Path,
    scratch: Path,
) -> None:
    is_archive = out.name.endswith(ARCHIVE_SUFFIX)
    write = _pack_archive if is_archive else _pack_directory
    write(staging, heads, files, scratch / out.name)
    (scratch / out.name).rename(out)


def _pack_archive(
    staging: Path,
    heads: Mapping[str, bytes],
    files: Mapping[str, FileEntry],
    out: Path,
    mode: int = 0o644,
) -> None:
    with out.open("wb") as file:
        archive = ArchiveWriter(file)
        for name, text in heads.items():
            archive.add(name, len(text), io.BytesIO(text))
        for path, entry in files.items():
            with _unchanged(staging / path, entry) as content:
                archive.add(path, entry.size_bytes, content)
        archive.finish()
        file.flush()
        # Whatever the umask is: a bundle is for others to read.
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _pack_directory(
    staging: Path,
    heads: Mapping[str, bytes],
    files: Mapping[str, FileEntry],
    out: Path,
) -> None:
    out.mkdir()
    for name, text in heads.items():
        (out / name).write_bytes(text)
    for path, entry in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        with (
            _unchanged(staging / path, entry) as content,
            (out / path).open("wb") as file,
        ):
            shutil.copyfileobj(content, file)
    out.chmod(0o755)


def _staged(staging: Path) -> tuple[str, ...]:
    heads = (MANIFEST_NAME, SIGNATURE_NAME)
    return _in_order(path for path in plain_files(staging) if path not in heads)


def _in_order(paths: Iterable[str]) -> tuple[str, ...]:
    # What is read alone, keys and records, comes before the large part.
    return tuple(sorted(paths, key=lambda path: (path.startswith("inductor/"), path)))


def file_entry(path: Path) -> FileEntry:
    """Return what a manifest says of a file."""
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
