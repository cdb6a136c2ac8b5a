"""The directory of an installed bundle: made once, checked and mended when reused."""

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flytune.caches.bundle import TEMPORARY, Bundle, make_private, writing
from flytune.caches.hook.flytune_hook import ACTIVATION_NAME, exposed, say
from flytune.caches.manifest import MANIFEST_NAME, Manifest, canonical_json
from flytune.caches.policy import inductor_without_flydsl
from flytune.caches.triton_cache import is_group, relocated_group
from flytune.shapes.errors import FlytuneError

CACHES = "inductor"
_MARKER_NAME = "installed.json"
# Digests of this many bytes take a tenth of a second; for more, a file whose size and
# time are those of its installation is taken to be whole.
_DIGEST_LIMIT_BYTES = 64 * 2**20


def default_directory(digest: str) -> Path:
    """Return where a bundle is installed unless told otherwise.

    Raises:
        FlytuneError: there is no home directory.
    """
    return flytune_home() / "installed" / digest[:16]


def flytune_home() -> Path:
    """Return `$FLYTUNE_HOME`, else `~/.cache/flytune`, as an absolute path.

    Raises:
        FlytuneError: there is no home directory.
    """
    try:
        home = os.environ.get("FLYTUNE_HOME") or Path("~/.cache/flytune").expanduser()
    except RuntimeError as error:
        raise FlytuneError("no home directory", hint="set FLYTUNE_HOME") from error
    return Path(home).absolute()


def place(bundle: Bundle, directory: Path | None) -> tuple[Path, tuple[str, ...]]:
    """Install a bundle's caches, or mend what is installed already.

    Safe beside other processes that install the same: a lock file lies beside the
    directory, which appears whole.

    Args:
        directory: absent, empty or an earlier place of this very bundle; the default
            one where None.

    Returns:
        The directory, and the files that had to be mended.

    Raises:
        FlytuneError: the bundle is corrupt, or the directory holds something else or
            can be written by other users.
    """
    own = directory is None
    target = default_directory(bundle.digest) if directory is None else directory
    target = target.absolute()
    with writing(target):
        make_private(target.parent)
        _check_private(target.parent, sticky=not own)
        with _locked(target.parent / f".{target.name}.lock"):
            for rubbish in target.parent.glob(f".{target.name}{TEMPORARY}*"):
                shutil.rmtree(rubbish, ignore_errors=True)
            if not target.exists() or not any(target.iterdir()):
                _install(bundle, target)
                return target, ()
            _check_private(target)
            marker = _marker(target)
            if marker.get("bundle") == bundle.digest:
                return target, _mend(bundle, target, marker)
            if not own:
                raise FlytuneError(
                    f"directory holds something else: {target}",
                    hint="remove it, or install into another",
                )
            shutil.rmtree(target)
            _install(bundle, target)
            return target, (_MARKER_NAME,)


def _install(bundle: Bundle, target: Path) -> None:
    def finish(directory: Path) -> None:
        (directory / CACHES).mkdir(mode=0o700, exist_ok=True)
        (directory / MANIFEST_NAME).write_bytes(bundle.text)
        (directory / ACTIVATION_NAME).write_bytes(_activation(bundle.manifest))
        _relocate(directory, _groups(bundle.manifest, target), paths)
        _write_marker(bundle, directory)

    paths = _cache_files(bundle.manifest)
    bundle.place(target, only=paths, finish=finish)


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


def _mend(bundle: Bundle, target: Path, marker: Mapping[str, Any]) -> tuple[str, ...]:
    times = marker.get("mtime_ns", {})
    paths = _cache_files(bundle.manifest)
    total = sum(bundle.manifest.files[path].size_bytes for path in paths)
    quick = times if total > _DIGEST_LIMIT_BYTES else {}
    groups = _groups(bundle.manifest, target)
    damaged = [
        path
        for path in paths
        if not (
            _holds(target / path, groups[path])
            if path in groups
            else _is_whole(bundle, target, path, quick.get(path))
        )
    ]
    activation = _activation(bundle.manifest)
    if not _holds(target / ACTIVATION_NAME, activation):
        damaged.append(ACTIVATION_NAME)
    if not damaged:
        return ()
    say(f"mending {len(damaged)} files of an installed bundle: {damaged[0]}")
    scratch = Path(
        tempfile.mkdtemp(prefix=f".{target.name}{TEMPORARY}", dir=target.parent)
    )
    try:
        fresh = scratch / target.name
        bundle.place(fresh, only=[path for path in damaged if path in paths])
        (fresh / ACTIVATION_NAME).write_bytes(activation)
        _relocate(fresh, groups, damaged)
        for path in {*damaged, ACTIVATION_NAME}:
            _put(fresh / path, target / path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _write_marker(bundle, target)
    return tuple(damaged)


def _is_whole(bundle: Bundle, target: Path, path: str, mtime_ns: int | None) -> bool:
    entry = bundle.manifest.files[path]
    try:
        status = (target / path).lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size_bytes:
            return False
        if status.st_mtime_ns == mtime_ns:
            return True
        with (target / path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    except OSError:
        return False


def _holds(path: Path, content: bytes) -> bool:
    try:
        return not path.is_symlink() and path.read_bytes() == content
    except OSError:
        return False


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


def _marker(target: Path) -> Mapping[str, Any]:
    try:
        marker = json.loads((target / _MARKER_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return marker if isinstance(marker, dict) else {}


def _write_marker(bundle: Bundle, directory: Path) -> None:
    times = {
        path: (directory / path).stat().st_mtime_ns
        for path in _cache_files(bundle.manifest)
    }
    part = directory / f".{_MARKER_NAME}"
    part.write_bytes(canonical_json({"bundle": bundle.digest, "mtime_ns": times}))
    part.replace(directory / _MARKER_NAME)


def _check_private(directory: Path, *, sticky: bool = False) -> None:
    """Caches are code: nobody else may have put them there."""
    if (path := exposed(str(directory), sticky)) is not None:
        raise FlytuneError(
            f"directory can be written by other users: {path}",
            hint="make it your own, mode 0700, or set FLYTUNE_HOME to a new folder",
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
