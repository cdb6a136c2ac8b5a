"""The directory of an installed bundle: made once, checked and mended when reused."""

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flytune.caches.bundle import TEMPORARY, Bundle, make_private, writing
from flytune.caches.codes import Code
from flytune.caches.home import (
    check_executable,
    check_private,
    default_directory,
    make_temporary,
)
from flytune.caches.hook.flytune_files import (
    MARKER_NAME,
    damaged,
    hold,
    read_marker,
    set_aside,
)
from flytune.caches.hook.flytune_hook import ACTIVATION_NAME, say
from flytune.caches.locks import lock_of, locked
from flytune.caches.manifest import FileEntry, Manifest, canonical_json, sha256_hex
from flytune.caches.policy import inductor_without_flydsl
from flytune.caches.triton_cache import is_group, relocated_group
from flytune.shapes.errors import FlytuneError

CACHES = "inductor"
# Digests of this many bytes take a tenth of a second; for more, a file whose size and
# time are those of its installation is taken to be whole.
_DIGEST_LIMIT_BYTES = 64 * 2**20


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
        if any(path.endswith(".so") for path in _cache_files(bundle.manifest)):
            check_executable(target.parent)
        with locked(lock_of(target)):
            placed = _place(bundle, target, own=own)
            # Its time is that of the last use.
            os.utime(target / MARKER_NAME)
            return replace(placed, held=hold(str(target)))


def _place(bundle: Bundle, target: Path, *, own: bool) -> Placed:
    for rubbish in target.parent.glob(f".{target.name}{TEMPORARY}*"):
        shutil.rmtree(rubbish, ignore_errors=True)
    if not target.exists() or not any(target.iterdir()):
        _install(bundle, target)
        return Placed(target)
    check_private(target)
    marker = read_marker(str(target))
    if marker.get("bundle") == bundle.digest:
        _write_heads(bundle, target)
        return _mend(bundle, target, marker["files"])
    if not own:
        raise FlytuneError(
            f"directory holds something else: {target}",
            hint="remove it, or install into another",
            code=Code.OCCUPIED,
        )
    shutil.rmtree(target)
    _install(bundle, target)
    return Placed(target, mended=(MARKER_NAME,))


def _install(bundle: Bundle, target: Path) -> None:
    def finish(directory: Path) -> None:
        (directory / CACHES).mkdir(mode=0o700, exist_ok=True)
        _write_heads(bundle, directory)
        (directory / ACTIVATION_NAME).write_bytes(_activation(bundle.manifest))
        _relocate(directory, _groups(bundle.manifest, target), paths)
        _write_marker(bundle.digest, directory, _rows(bundle.manifest, target, {}))

    paths = _cache_files(bundle.manifest)
    bundle.place(target, only=paths, finish=finish)


def _write_heads(bundle: Bundle, directory: Path) -> None:
    """Keep the manifest and who signed it, byte for byte.

    With them the directory is served again when the bundle itself is gone.
    """
    for name, content in bundle.heads().items():
        part = directory / f".{name}"
        part.write_bytes(content)
        part.replace(directory / name)


def _groups(manifest: Manifest, target: Path) -> Mapping[str, bytes]:
    """Return each of Triton's lists as it must be for files that lie in `target`."""
    paths = _cache_files(manifest)
    names = defaultdict(list)
    for path in paths:
        folder, _, name = path.rpartition("/")
        names[folder].append(name)
    return {
        path: relocated_group(target / path, names[path.rpartition("/")[0]])
        for path in paths
        if is_group(Path(path))
    }


def _relocate(
    directory: Path, groups: Mapping[str, bytes], paths: Iterable[str]
) -> None:
    """Write those of Triton's lists that are among the files of `directory`."""
    for path in paths:
        if path in groups:
            (directory / path).write_bytes(groups[path])


def _mend(bundle: Bundle, target: Path, marker: Mapping[str, Any]) -> Placed:
    rows = _rows(bundle.manifest, target, marker)
    small = sum(size for size, _, _ in rows.values()) <= _DIGEST_LIMIT_BYTES
    broken = damaged(str(target), rows, read=small)
    absent = [path for path in rows if not os.path.lexists(target / path)]
    if not broken + absent:
        return Placed(target, mended=_mend_activation(bundle.manifest, target))
    try:
        _write_anew(bundle, target, broken + absent)
    except FlytuneError as error:
        _mend_activation(bundle.manifest, target)
        return _without(target, broken, error)
    kept = {p: row for p, row in marker.items() if p not in {*broken, *absent}}
    _write_marker(bundle.digest, target, _rows(bundle.manifest, target, kept))
    mended = (*broken, *absent, *_mend_activation(bundle.manifest, target))
    say(
        f"mended {len(mended)} files of an installed bundle: {mended[0]} "
        f"({Code.MENDED})"
    )
    return Placed(target, mended=mended)


def _mend_activation(manifest: Manifest, target: Path) -> tuple[str, ...]:
    content = _activation(manifest)
    try:
        held = (target / ACTIVATION_NAME).read_bytes() == content
    except OSError:
        held = False
    if held:
        return ()
    part = target / f".{ACTIVATION_NAME}"
    part.write_bytes(content)
    _put(part, target / ACTIVATION_NAME)
    return (ACTIVATION_NAME,)


def _without(target: Path, broken: list[str], error: FlytuneError) -> Placed:
    """Go on without the damaged files of a bundle that cannot mend them.

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
    return Placed(target, set_aside=tuple(moved))


def _write_anew(bundle: Bundle, target: Path, paths: list[str]) -> None:
    scratch = Path(
        tempfile.mkdtemp(prefix=f".{target.name}{TEMPORARY}", dir=target.parent)
    )
    try:
        fresh = scratch / target.name
        bundle.place(fresh, only=paths)
        _relocate(fresh, _groups(bundle.manifest, target), paths)
        for path in paths:
            _put(fresh / path, target / path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _rows(
    manifest: Manifest, target: Path, marker: Mapping[str, Any]
) -> dict[str, tuple[int, int, str]]:
    """Return what each installed file must be, and its time, for `damaged`."""
    groups = _groups(manifest, target)
    rows = {}
    for path in _cache_files(manifest):
        entry = manifest.files[path]
        if path in groups:
            entry = FileEntry(sha256_hex(groups[path]), len(groups[path]))
        mtime_ns = marker[path][1] if path in marker else -1
        rows[path] = (entry.size_bytes, mtime_ns, entry.sha256)
    return rows


def _put(source: Path, target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    make_private(target.parent)
    source.replace(target)


def _cache_files(manifest: Manifest) -> Collection[str]:
    return [path for path in manifest.files if path.startswith(f"{CACHES}/")]


def _activation(manifest: Manifest) -> bytes:
    """What the hook needs, apart from the manifest, which may be large."""
    inductor = manifest.policy.get("inductor", {})
    return canonical_json(
        {
            "kind": manifest.target["hardware"].get("kind"),
            "software": manifest.target["software"],
            "inductor": inductor,
            "inductor_without_flydsl": inductor_without_flydsl(inductor),
            "dynamo": manifest.policy.get("dynamo", {}),
        }
    )


def _write_marker(
    digest: str, directory: Path, rows: Mapping[str, tuple[int, int, str]]
) -> None:
    """Say that the directory is whole; a time of -1 is that of the file now."""
    files = {
        path: (size, (directory / path).stat().st_mtime_ns if time < 0 else time, sha)
        for path, (size, time, sha) in rows.items()
    }
    part = directory / f".{MARKER_NAME}"
    part.write_bytes(canonical_json({"bundle": digest, "files": files}))
    part.replace(directory / MARKER_NAME)
