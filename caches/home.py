"""Where bundles are installed, and that nobody else can write there."""

import os
import stat
import tempfile
from pathlib import Path

from flytune.caches.codes import Code
from flytune.caches.hook.flytune_files import exposed
from flytune.caches.hook.flytune_status import STATUS_VARIABLE
from flytune.shapes.errors import FlytuneError

HOME_VARIABLE = "FLYTUNE_HOME"
INSTALLED = "installed"
_HINT = "make it your own, mode 0700, or set FLYTUNE_HOME to a new folder"


def default_directory(digest: str) -> Path:
    """Return where a bundle is installed unless told otherwise."""
    return flytune_home() / INSTALLED / digest[:16]


def flytune_home() -> Path:
    """Return `$FLYTUNE_HOME`, else `~/.cache/flytune`, as an absolute path.

    A user without a home, or with one that cannot be written, as in a container whose
    root is read-only, has one below the directory of temporary files.
    """
    named = os.environ.get(HOME_VARIABLE)
    if named:
        return Path(named).absolute()
    try:
        home = Path("~/.cache/flytune").expanduser().absolute()
    except RuntimeError:
        return _temporary_home()
    return home if _can_be_made(home) else _temporary_home()


def status_directory() -> str:
    """Return where processes say what became of their bundles; empty for nowhere."""
    named = os.environ.get(STATUS_VARIABLE)
    if named is not None:
        return named
    try:
        return str(flytune_home() / "status")
    except OSError:
        # A relative home below a working directory that is gone.
        return ""


def check_private(directory: Path, *, sticky: bool = False) -> None:
    """Refuse a directory that others can write: caches are code.

    Args:
        sticky: whether it may be one like /tmp, as it is not the bundle's own.

    Raises:
        FlytuneError: it, or one above it, is another user's, or others can write it.
        OSError: it cannot be looked at.
    """
    if (path := exposed(str(directory), sticky)) is not None:
        raise FlytuneError(
            f"directory can be written by other users: {path}",
            hint=_HINT,
            code=Code.NOT_PRIVATE,
        )


def make_temporary(directory: Path) -> None:
    """Make the home of a user without one; refuse what somebody else put there.

    Args:
        directory: one that a bundle is to be installed in, which may be elsewhere.

    Raises:
        FlytuneError: as `check_private`, or it is a link.
        OSError: it cannot be made.
    """
    home = _temporary_home()
    if home not in directory.parents:
        return
    home.mkdir(mode=0o700, exist_ok=True)
    if home.is_symlink():
        raise FlytuneError(
            f"directory is a link: {home}", hint=_HINT, code=Code.NOT_PRIVATE
        )
    check_private(home)


def check_executable(directory: Path) -> None:
    """Refuse a mount from which no library can be loaded.

    Raises:
        FlytuneError: it is mounted without exec.
        OSError: it cannot be looked at.
    """
    if without_exec(directory):
        raise FlytuneError(
            f"caches would lie on a mount without exec: {directory}",
            hint="set FLYTUNE_HOME to a mount with exec",
            code=Code.NO_EXEC,
        )


def without_exec(directory: Path) -> bool:
    """Whether no library can be loaded from a directory, which exists.

    Raises:
        OSError: it cannot be looked at.
    """
    return bool(os.statvfs(directory).f_flag & os.ST_NOEXEC)


def existing(directory: Path) -> Path:
    """Return a directory, else the nearest above it that is seen to be there."""
    while not os.path.exists(directory) and directory != directory.parent:
        directory = directory.parent
    return directory


def _temporary_home() -> Path:
    return Path(tempfile.gettempdir()).absolute() / f"flytune-{os.geteuid()}"


def _can_be_made(directory: Path) -> bool:
    there = existing(directory)
    try:
        return stat.S_ISDIR(there.stat().st_mode) and os.access(
            there, os.W_OK | os.X_OK
        )
    except OSError:
        return False
