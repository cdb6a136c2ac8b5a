"""An installed directory's files: held while they are in use, and damage set aside.

Inductor loads what it finds: of a library cut short it dies, and of a graph with
another bit in it it may serve a wrong result. What is set aside is a miss.

Standard library alone, and nothing newer than Python 3.10: as the hook.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MARKER_NAME = "installed.json"
"""The last file of an installation: the bundle's digest, the activation's, and of each
of the bundle's files the size in bytes, the time in nanoseconds, and the SHA-256."""
ACTIVATION_NAME = "activation.json"
"""What the hook needs of the manifest, which may be large."""
DAMAGED = "damaged"
"""The folder beside the caches that holds what was set aside."""
_COPY_BYTES = 1 << 20
_FOUND = (".best_config", ".kernel_perf", ".autotune.json")
# Digests of this many bytes take a tenth of a second; for more, a file whose size and
# time are those of its installation is taken to be whole.
_DIGEST_LIMIT_BYTES = 64 * 2**20


def hold(directory: str) -> int:
    """Keep `flytune gc` from removing a directory while this process runs.

    Returns what is held, a descriptor; -1 where the file system has no locks.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return -1
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor


def exposed(directory: str, sticky: bool = False) -> str | None:
    """Return what lets other users change an installed bundle, or None.

    That is the directory, or one above it up to $FLYTUNE_HOME or this user's home,
    which somebody else than this user and root owns, or which others can write; in a
    sticky one above they can rename nothing. What lies above a home is the
    administrator's. In a directory that others can enter, all that it holds is looked
    at too.

    Args:
        sticky: whether the directory is the one above, which may be sticky.

    Raises:
        OSError: there is no such directory.
    """
    named = (os.environ.get("FLYTUNE_HOME") or "~", "~")
    homes = {os.path.realpath(os.path.expanduser(path)) for path in named}
    path = os.path.realpath(directory)
    if not sticky and os.stat(path).st_mode & 0o011:
        for folder, folders, files in os.walk(path):
            for name in folders + files:
                inner = os.path.join(folder, name)
                if _others_can_write(os.lstat(inner)):
                    return inner
    while True:
        if _others_can_write(os.stat(path), sticky):
            return path
        if path in homes or path == os.path.dirname(path):
            return None
        path, sticky = os.path.dirname(path), True


def _others_can_write(status: os.stat_result, sticky: bool = False) -> bool:
    # A link's own mode says nothing, and where it leads to was checked or is not ours.
    writable = status.st_mode & 0o022 and not stat.S_ISLNK(status.st_mode)
    kept = sticky and status.st_mode & stat.S_ISVTX
    return bool(writable and not kept) or status.st_uid not in (0, os.geteuid())


def read_plain(path: str) -> bytes:
    """Return a file's content; a link is not followed, nor a pipe waited for.

    Raises:
        OSError: it cannot be read, or is no plain file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no plain file", path)
        return file.read()


def read_marker(directory: str) -> Mapping[str, Any]:
    """Return what an installation says of its files; empty where it is damaged."""
    try:
        marker = json.loads(read_plain(os.path.join(directory, MARKER_NAME)))
        rows = marker["files"]
        sound = all(
            [type(part) for part in row] == [int, int, str] for row in rows.values()
        )
        return marker if sound and isinstance(marker["bundle"], str) else {}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}


def read_activation(directory: str) -> Any:
    """Return what the hook is to hold torch to.

    Raises:
        OSError: it cannot be read.
        ValueError: it, or the marker, is not as it was written.
    """
    content = read_plain(os.path.join(directory, ACTIVATION_NAME))
    digest = read_marker(directory).get("activation")
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"not as it was installed: {directory}/{ACTIVATION_NAME}")
    return json.loads(content)


def damaged(
    directory: str, files: Mapping[str, Sequence[Any]], *, read: bool = False
) -> list[str]:
    """Return which files of an installation are not as they were installed.

    One that is absent is no damage, but a miss. Timings, and what was found best, may
    be others by now, as serving adds to them, but must be of their form.

    Args:
        files: what `read_marker` says of them.
        read: compare all digests, however much that is to read.
    """
    read = read or sum(row[0] for row in files.values()) <= _DIGEST_LIMIT_BYTES
    astray = _astray(directory, files)
    return [
        path
        for path, row in files.items()
        if not astray.isdisjoint(_folders(path))
        or not _is_whole(directory, path, row, read)
    ]


def _astray(directory: str, paths: Iterable[str]) -> set[str]:
    """Return which folders of some files are something else, such as a link."""
    folders = {folder for path in paths for folder in _folders(path)}
    found = set()
    for folder in folders:
        try:
            mode = os.lstat(os.path.join(directory, folder)).st_mode
        except OSError:
            # Absent, or in one that is something else itself.
            continue
        if not stat.S_ISDIR(mode):
            found.add(folder)
    return found


def _folders(path: str) -> list[str]:
    """Return the folders that a relative path names, the outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def set_aside(directory: str, paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Move damaged files to where nothing loads them, with what cannot be without them.

    Returns the files that were damaged and no longer are there, and those that cannot
    be moved.
    """
    moved, stuck = [], []
    paths = list(paths)
    astray = _astray(directory, paths)
    for path in paths:
        # What lies behind a link is not ours to move.
        goes = next((f for f in _folders(path) if f in astray), _unit(path))
        source = os.path.join(directory, goes)
        place = os.path.join(directory, DAMAGED, goes.replace("/", "__"))
        try:
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            if os.path.lexists(source):
                _make_room(place)
            os.rename(source, place)
        except FileNotFoundError:
            # Another process, or a file of the same kernel, was faster.
            pass
        except OSError:
            stuck.append(path)
            continue
        moved.append(path)
    return moved, stuck


def digest_of(path: str) -> str:
    """Return a file's SHA-256 in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(_COPY_BYTES):
            found.update(part)
    return found.hexdigest()


def may_change(path: str) -> bool:
    """Whether serving writes a file anew: Inductor's timings, and what it found best.

    They are JSON, or one number.
    """
    return path.split("/")[1:2] == ["cache"] or path.endswith(_FOUND)


def _is_whole(directory: str, path: str, row: Sequence[Any], read: bool) -> bool:
    size, mtime_ns = row[:2]
    digest: str = row[2]
    file = os.path.join(directory, path)
    try:
        found = os.lstat(file)
        if not stat.S_ISREG(found.st_mode):
            return False
        same = found.st_size == size and found.st_mtime_ns == mtime_ns
        if same and not read:
            return True
        if may_change(path) and not same:
            return _is_sound(file, "cache" if path.split("/")[1] == "cache" else "")
        return size == found.st_size and digest_of(file) == digest
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _is_sound(path: str, field: str) -> bool:
    """Whether torch can read what serving wrote: JSON, with the field if it has one."""
    try:
        found = json.loads(read_plain(path))
        return not field or isinstance(found[field], dict)
    except (ValueError, RecursionError, LookupError, TypeError):
        return False


def _unit(path: str) -> str:
    """Return what goes with a file: a kernel of Triton's is found whole or not at all.

    Without its folder it is written anew, from the graph that holds it.
    """
    parts = path.split("/")
    return "/".join(parts[:4]) if parts[1:2] == ["triton"] else path


def _make_room(place: str) -> None:
    """Remove what was set aside earlier under the same name."""
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place)
