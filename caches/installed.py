"""The bundles that are installed here: listed, found by digest, and cleared away."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flytune.caches.blobs import idle_blobs
from flytune.caches.bundle import Bundle
from flytune.caches.codes import Code
from flytune.caches.home import INSTALLED, flytune_home, status_directory
from flytune.caches.hook.flytune_files import MARKER_NAME, read_marker
from flytune.caches.hook.flytune_status import left_over
from flytune.caches.locks import lock_folder, lock_of, locked
from flytune.caches.scratch import TEMPORARY, make_beside
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError

DIGEST_PREFIX = "sha256:"
"""How a digest is told from a path."""


@dataclass(frozen=True, slots=True)
class InstalledBundle:
    """One installed directory."""

    directory: Path
    digest: str
    model: str
    target: str
    """Its slug, such as "cpu-amd-epyc-avx512"."""
    size_bytes: int
    """Of all its files, also of those that serving added."""
    used: float
    """When it was last installed or served from, in seconds since 1970."""
    in_use: bool
    """Whether a process that runs serves from it."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """What a clearing removed, or would remove."""

    bundles: tuple[InstalledBundle, ...]
    leftovers: tuple[str, ...]
    """Names of what killed processes left: temporary folders, locks, status files."""
    blobs: tuple[str, ...] = ()
    """Names of what was fetched from a registry, and is at hand no more."""


def installed_bundles() -> tuple[InstalledBundle, ...]:
    """Return the bundles that are installed below `flytune_home`, last used first."""
    found = [_described(path, marker) for path, marker in _directories()]
    return tuple(sorted(found, key=lambda one: -one.used))


def installed_path(digest: str) -> Path:
    """Return the directory of the installed bundle whose digest starts so.

    Args:
        digest: `sha256:` and some digits of it.

    Raises:
        FlytuneError: there is none, or more than one.
    """
    start = digest.removeprefix(DIGEST_PREFIX)
    found = [path for path, held in _directories() if start and held.startswith(start)]
    if not found:
        raise FlytuneError(
            f"no installed bundle has the digest: {digest}",
            hint="`flytune installed` lists those that are",
            code=Code.NOT_INSTALLED,
        )
    if len(found) > 1:
        raise FlytuneError(
            f"{len(found)} installed bundles have a digest that starts so: {digest}",
            hint="give more digits; `flytune installed` lists them",
            code=Code.AMBIGUOUS,
        )
    return found[0]


def clear(keep: int, *, dry_run: bool = False) -> Cleared:
    """Remove installed bundles but the last used, and what killed processes left.

    One that a process serves from stays, and is among those that are kept.

    Args:
        keep: how many stay that nobody serves from.
        dry_run: remove nothing, and tell what would be.
    """
    idle = [one for one in installed_bundles() if not one.in_use]
    surplus, leftovers, blobs = idle[keep:], _leftovers(), idle_blobs()
    if not dry_run:
        surplus = [one for one in surplus if _removed(one.directory)]
        leftovers = [path for path in leftovers if _cleared(path)]
        for path in blobs:
            path.unlink(missing_ok=True)
    names = (tuple(path.name for path in paths) for paths in (leftovers, blobs))
    return Cleared(tuple(surplus), *names)


def _directories() -> Iterator[tuple[Path, str]]:
    """Yield each directory and its digest, empty where that is damaged."""
    root = flytune_home() / INSTALLED
    if root.is_dir():
        for path in sorted(root.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield path, read_marker(str(path)).get("bundle", "")


def _described(path: Path, digest: str) -> InstalledBundle:
    try:
        manifest = Bundle.open(path).manifest
        model = str(manifest.model.get("name", "unknown"))
        target = Target.from_json(manifest.target).slug
    except FlytuneError:
        model, target = "damaged", "unknown"
    files = [entry for entry in path.rglob("*") if entry.is_file()]
    marker = path / MARKER_NAME
    return InstalledBundle(
        *(path, digest or path.name, model, target),
        size_bytes=sum(entry.stat().st_size for entry in files),
        used=(marker if marker.exists() else path).stat().st_mtime,
        in_use=_in_use(path),
    )


def _leftovers() -> list[Path]:
    root, status = flytune_home() / INSTALLED, status_directory()
    hidden = sorted(root.glob(".*")) if root.is_dir() else []
    left = [path for path in hidden if TEMPORARY in path.name or _is_lock(path)]
    if status and os.path.isdir(status):
        left += map(Path, left_over(status))
    return left


def _is_lock(path: Path) -> bool:
    """Whether it is a lock of a directory that is not there."""
    owner = path.with_name(path.name[1:].removesuffix(".lock"))
    return path.name.endswith(".lock") and not owner.exists()


def _removed(directory: Path) -> bool:
    """Remove an installed directory unless somebody uses it or installs it now."""
    try:
        with locked(lock_of(directory), wait=False):
            if _in_use(directory):
                return False
            # A process that starts now finds the whole of it or nothing.
            scratch = make_beside(directory)
            directory.rename(scratch / directory.name)
            shutil.rmtree(scratch, ignore_errors=True)
            lock_of(directory).unlink()
    except OSError:
        return False
    return True


def _cleared(path: Path) -> bool:
    """Remove a leftover unless somebody is at work on it."""
    if path.is_file() and not path.name.endswith(".lock"):
        path.unlink(missing_ok=True)
        return True
    owner = path.name[1:].partition(TEMPORARY)[0].removesuffix(".lock")
    try:
        with locked(lock_of(path.with_name(owner)), wait=False):
            shutil.rmtree(path, ignore_errors=True)
            if not path.with_name(owner).exists():
                lock_of(path.with_name(owner)).unlink()
    except OSError:
        return False
    return True


def _in_use(directory: Path) -> bool:
    try:
        os.close(lock_folder(directory.resolve()))
    except OSError:
        return True
    return False
