"""The parts of a bundle as it is shipped, each an archive of its own.

The same files make the same bytes, so that of a bundle which changed a little only the
parts that changed are moved.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from flytune.caches.archive import (
    COPY_BYTES,
    ArchiveWriter,
    BundleError,
    Fault,
    members,
)
from flytune.caches.bundle import make_private
from flytune.caches.manifest import FileEntry, check_path
from flytune.caches.parts import part_of


def by_part(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the paths of each part, parts and paths in order."""
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        found.setdefault(part_of(path), []).append(path)
    return {name: tuple(found[name]) for name in sorted(found)}


def write_part(placed: Path, paths: Iterable[str], out: Path) -> None:
    """Write files of an unpacked bundle as one archive.

    Raises:
        OSError: a file cannot be read, or the archive cannot be written.
    """
    with out.open("wb") as file:
        archive = ArchiveWriter(file)
        for path in paths:
            with (placed / path).open("rb") as content:
                size_bytes = (placed / path).stat().st_size
                archive.add(path, size_bytes, content)
        archive.finish()


def read_part(part: Path, files: Mapping[str, FileEntry], into: Path) -> None:
    """Unpack one part beside the others; the digests are left to be checked.

    Args:
        files: Of the bundle's manifest; what is not among them is refused.

    Raises:
        BundleError: it breaks a rule of the format, or holds a file that the manifest
            does not list, or of another size, or one that is there already.
    """
    with part.open("rb") as file:
        for member in members(file):
            check_path(member.name)
            entry = files.get(member.name)
            if entry is None:
                raise BundleError(Fault.UNLISTED, repr(member.name))
            if entry.size_bytes != member.size_bytes:
                raise BundleError(Fault.SIZE, repr(member.name))
            target = into / member.name
            make_private(target.parent)
            try:
                # Exclusive: a second member of the name could be another file.
                with target.open("xb", buffering=COPY_BYTES) as written:
                    while chunk := member.content.read():
                        written.write(chunk)
            except FileExistsError as error:
                raise BundleError(Fault.TWICE, repr(member.name)) from error
