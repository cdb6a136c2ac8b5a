"""The directory of an installed bundle: made once, checked and mended when reused."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flytune.caches.bundle import Bundle, make_private, writing
from flytune.caches.codes import Code
from flytune.caches.expected import (
    CACHES,
    activation_of,
    cache_files,
    groups_of,
    rows_of,
    write_groups,
)
from flytune.caches.home import (
    check_executable,
    check_private,
    default_directory,
    make_temporary,
)
from flytune.caches.hook.flytune_files import (
    ACTIVATION_NAME,
    MARKER_NAME,
    damaged,
    hold,
    read_marker,
    read_plain,
    set_aside,
)
from flytune.caches.hook.flytune_hook import say
from flytune.caches.locks import lock_of, locked
from flytune.caches.manifest import (
    SIGNATURE_NAME,
    canonical_json,
    sha256_hex,
)
from flytune.caches.scratch import leftovers, make_beside
from flytune.shapes.errors import FlytuneError


@dataclass(frozen=True, slots=True)
class Placed:
    """An installed directory, which `flytune gc` leaves while this process runs."""

    directory: Path
    mended: tuple[str, ...] = ()
    """Files that were damaged and are whole again."""
    set_aside: tuple[str, ...] = ()
    """Files that were damaged, and that the bundle cannot mend."""
    held: int = -1
    """The descriptor by which it is held."""


def place(bundle: Bundle, directory: Path | None) -> Placed:
    """Install a bundle's caches, or mend what is installed already.

    Safe beside other processes that install the same: a lock file lies beside the
    directory, which appears whole.

    Args:
        directory: absent, empty or an earlier place of this very bundle; the default
            one where None.

    Raises:
        FlytuneError: the bundle is corrupt, or the directory holds something else, can
            be written by other users, or is on a mount without exec.
    """
    own = directory is None
    target = default_directory(bundle.digest) if directory is None else directory
    target = target.absolute()
    with writing(target):
        make_temporary(target)
        make_private(target.parent)
        check_private(target.parent, sticky=not own)
        if any(path.endswith(".so") for path in cache_files(bundle.manifest)):
            check_executable(target.parent)
        with locked(lock_of(target)):
            placed = _place(bundle, target, own=own)
            # Its time is that of the last use.
            os.utime(target / MARKER_NAME)
            return replace(placed, held=hold(str(target)))


def _place(bundle: Bundle, target: Path, *, own: bool) -> Placed:
    for rubbish in leftovers(target):
        shutil.rmtree(rubbish, ignore_errors=True)
    if not target.exists() or not any(target.iterdir()):
        _install(bundle, target)
        return Placed(target)
    check_private(target)
    marker = read_marker(str(target))
    torn = not marker and os.path.lexists(target / MARKER_NAME)
    # A default place has the bundle's name: a marker that is damaged takes nothing.
    if marker.get("bundle") == bundle.digest or (own and torn):
        return _mend(bundle, target, marker)
    if not own:
        raise FlytuneError(
            f"directory holds something else: {target}",
            hint="remove it, or install into another",
            code=Code.OCCUPIED,
        )
    scratch = make_beside(target)
    try:
        # What is there goes when the bundle is known to be whole.
        _install(bundle, target, scratch / "new")
        target.rename(scratch / "old")
        (scratch / "new").rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Placed(target, mended=(MARKER_NAME,))


def _install(bundle: Bundle, target: Path, fresh: Path | None = None) -> None:
    """Write a directory that is to lie at `target`, there or first at `fresh`."""

    def finish(directory: Path) -> None:
        (directory / CACHES).mkdir(mode=0o700, exist_ok=True)
        _write_own(bundle, directory)
        write_groups(directory, groups_of(bundle.manifest, target), paths)
        _write_marker(bundle, directory, rows_of(bundle.manifest, target, {}))

    paths = cache_files(bundle.manifest)
    bundle.place(fresh or target, only=paths, finish=finish)


def _write_own(bundle: Bundle, directory: Path) -> tuple[str, ...]:
    """Write flytune's own files, but the marker, where they are not there and whole.

    With the manifest and who signed it, byte for byte, the directory is served again
    when the bundle itself is gone. Returns those that were written.
    """
    own = {**bundle.heads(), ACTIVATION_NAME: activation_of(bundle.manifest)}
    anew = [name for name, content in own.items() if _write(directory / name, content)]
    # Another signature is no damage: somebody signed the bundle since.
    return tuple(name for name in anew if name != SIGNATURE_NAME)


def _write(path: Path, content: bytes) -> bool:
    """Write a file anew unless it is whole; return whether it was not."""
    part = path.with_name(f".{path.name}")
    # Of a process that was killed.
    part.unlink(missing_ok=True)
    try:
        if read_plain(str(path)) == content:
            return False
    except OSError:
        pass
    part.write_bytes(content)
    _put(part, path)
    return True


def _mend(bundle: Bundle, target: Path, marker: Mapping[str, Any]) -> Placed:
    own = _write_own(bundle, target)
    rows = rows_of(bundle.manifest, target, marker.get("files", {}))
    broken = damaged(str(target), rows)
    absent = [
        path for path in rows.keys() - set(broken) if not os.path.lexists(target / path)
    ]
    bad = sorted(broken + absent)
    moved: tuple[str, ...] = ()
    try:
        if bad:
            _write_anew(bundle, target, bad)
    except FlytuneError as error:
        moved, bad = _without(target, broken, error), []
    for path in bad:
        size, _, digest = rows[path]
        rows[path] = (size, -1, digest)
    if _write_marker(bundle, target, rows) and not bad:
        own = (*own, MARKER_NAME)
    mended = (*bad, *own)
    if mended:
        say(
            f"mended {len(mended)} files of an installed bundle: {mended[0]} "
            f"({Code.MENDED})"
        )
    return Placed(target, mended=mended, set_aside=moved)


def _without(target: Path, broken: list[str], error: FlytuneError) -> tuple[str, ...]:
    """Go on without the damaged files of a bundle that cannot mend them.

    Returns those that are set aside.

    Raises:
        FlytuneError: they cannot be set aside.
    """
    moved, stuck = set_aside(str(target), broken)
    if stuck:
        raise FlytuneError(
            f"a damaged file cannot be set aside: {stuck[0]}", code=Code.NOT_SET_ASIDE
        ) from error
    if moved:
        say(
            f"{len(moved)} damaged files of an installed bundle are set aside: "
            f"{moved[0]} ({Code.SET_ASIDE})"
        )
    return tuple(moved)


def _write_anew(bundle: Bundle, target: Path, paths: list[str]) -> None:
    scratch = make_beside(target)
    try:
        fresh = scratch / target.name
        bundle.place(fresh, only=paths)
        write_groups(fresh, groups_of(bundle.manifest, target), paths)
        for path in paths:
            for folder in reversed((target / path).relative_to(target).parents[:-1]):
                _remove_other(target / folder)
            _put(fresh / path, target / path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _put(source: Path, target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    make_private(target.parent)
    source.replace(target)


def _remove_other(folder: Path) -> None:
    """Remove what is in the place of a folder, such as a link, not what it names."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        folder.unlink()


def _write_marker(
    bundle: Bundle, directory: Path, rows: Mapping[str, tuple[int, int, str]]
) -> bool:
    """Say what is whole, if that is news; a time of -1 is that of the file now."""
    files = {
        path: (size, _time_of(directory / path) if time < 0 else time, sha)
        for path, (size, time, sha) in rows.items()
    }
    activation = sha256_hex(activation_of(bundle.manifest))
    row = {"bundle": bundle.digest, "activation": activation, "files": files}
    return _write(directory / MARKER_NAME, canonical_json(row))


def _time_of(path: Path) -> int:
    """Return a file's time in nanoseconds; 0 where it was set aside."""
    return path.lstat().st_mtime_ns if os.path.lexists(path) else 0
