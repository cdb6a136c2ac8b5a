"""Installing a bundle for this process, or for the command that it becomes."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flytune.caches.codes import Code
from flytune.caches.home import status_directory
from flytune.caches.hook import flytune_hook, flytune_start
from flytune.caches.hook.flytune_status import SERVING, STATUS_VARIABLE, Status
from flytune.caches.prepare import Change, Installed, InstallStatus, prepare
from flytune.caches.trust import HERE, Trust
from flytune.caches.vllm_plugin import BUNDLE_VARIABLE
from flytune.shapes.errors import FlytuneError


def install(
    bundle: Path | str,
    into: Path | str | None = None,
    *,
    strict: bool = False,
    children: bool = False,
    trust: Iterable[Path | str] = (),
    allow_unsigned: bool = False,
) -> Installed:
    """Make this process serve from a bundle; call it before torch is imported.

    A bundle that is for another target, corrupt or cannot be placed changes nothing:
    one line on stderr says why, and serving goes on without it. torch's source is
    compared when it is imported; where it differs, all is set back.

    Args:
        bundle: a path, or `sha256:` and the start of an installed bundle's digest.
        into: the directory to install into; below `$FLYTUNE_HOME`, else
            `~/.cache/flytune`, where None.
        strict: raise where the bundle is not used, but for FLYTUNE_DISABLE.
        children: let every Python child of this process do the same, by way of
            PYTHONPATH; for engines that serve from worker processes.
        trust: files and folders of public keys whose bundles may be loaded, beside
            those that this user trusts.
        allow_unsigned: load a bundle that no such key signed; it runs code.

    Raises:
        FlytuneError: strict, and the bundle is corrupt, cannot be placed, is for
            another target or nobody vouches for it here, or Inductor is imported
            already.
    """
    trusted = Trust(tuple(map(Path, trust)), allow_unsigned)

    def armed() -> Installed:
        if "torch._inductor" in sys.modules:
            raise FlytuneError(
                "torch._inductor is imported already",
                hint="call flytune.caches.install before the first import of torch",
                code=Code.TOO_LATE,
            )
        installed = prepare(bundle, into, strict=strict, trust=trusted)
        if installed.directory is not None:
            _arm(installed, children=children)
        return installed

    return _guarded(bundle, armed, strict=strict)


def install_imported(bundle: Path | str, *, strict: bool = False) -> Installed:
    """As `install`, in a process that has torch already and has compiled nothing yet.

    Its own OpenMP threads are what they are; its children get the policy's.

    Raises:
        FlytuneError: strict, and as `install`, or torch's build is another one.
    """

    def armed() -> Installed:
        installed = prepare(bundle, strict=strict)
        if installed.directory is None:
            return installed
        status = _arm(installed, children=False)
        if status.state in SERVING:
            return installed
        code = Code(status.code)
        if strict:
            raise FlytuneError(f"bundle is not used: {status.reason}", code=code)
        state = InstallStatus(status.state)
        unused = replace(installed, status=state, directory=None)
        return replace(unused, code=code, reason=status.reason)

    return _guarded(bundle, armed, strict=strict)


def attempt(
    bundle: Path | str,
    into: Path | str | None = None,
    *,
    strict: bool = False,
    command: bool = False,
    trust: Trust = HERE,
    find: Callable[[], Path] | None = None,
) -> Installed:
    """Place a bundle, or say in one line why serving goes on without it.

    Args:
        find: finds the bundle, which `bundle` only names then.
        strict: raise where it is not used, but for FLYTUNE_DISABLE.
        command: as for `prepare`.

    Raises:
        FlytuneError: strict, and as `prepare` does.
    """

    def prepared() -> Installed:
        found = bundle if find is None else find()
        return prepare(found, into, strict=strict, command=command, trust=trust)

    return _guarded(bundle, prepared, strict=strict)


def _guarded(
    bundle: Path | str, work: Callable[[], Installed], *, strict: bool
) -> Installed:
    """Run an installation; where it fails say so, and let serving go on."""
    if flytune_start.is_disabled():
        off = flytune_hook.SWITCHED_OFF
        installed = _unused(InstallStatus.DISABLED, bundle, Code(off.code), off.text)
    else:
        try:
            installed = work()
        except FlytuneError as error:
            if strict:
                raise
            code = Code.INTERNAL if error.code is None else Code(error.code)
            installed = _unused(InstallStatus.ERROR, bundle, code, str(error))
        # Whatever fails here, serving must go on as it would have without a bundle.
        except Exception as error:
            if strict:
                raise
            text = f"{type(error).__name__}: {error}"
            installed = _unused(InstallStatus.ERROR, bundle, Code.INTERNAL, text)
    if installed.directory is None:
        status_of(installed).write()
    return installed


def _arm(installed: Installed, *, children: bool) -> Status:
    if (earlier := flytune_hook.armed()) is not None:
        earlier.disable(None)
    changes = _with_previous(installed, os.environ)
    directory = str(installed.directory)
    if children:
        changes = _with_children(directory, changes, os.environ)
    status = status_of(installed)
    _apply(changes, os.environ)
    status.write()
    flytune_hook.arm(directory, _pairs(changes), status)
    return status


def status_of(installed: Installed) -> Status:
    """Return what is to be told of this process, not yet written."""
    status = Status(
        status_directory(), installed.digest, str(installed.directory or "")
    )
    if installed.mended:
        status.files["mended"] = len(installed.mended)
        status.count(Code.MENDED)
    if installed.set_aside:
        status.set_aside(len(installed.set_aside), Code.SET_ASIDE)
    if installed.code is not None:
        parts = [
            {"part": p.part, "built": p.built, "live": p.live} for p in installed.misses
        ]
        status.fail(installed.status, installed.code, installed.reason, *parts)
    return status


def exec_environment(installed: Installed) -> dict[str, str]:
    """Return the whole environment for a command that serves from the bundle.

    Raises:
        FlytuneError: nothing was installed, as the bundle is for another target.
    """
    environment = dict(os.environ)
    for name, value in served_changes(installed).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def served_changes(installed: Installed) -> dict[str, str | None]:
    """Return what a serving environment must have; None is a variable to unset.

    With them every Python process holds torch to the policy, whoever starts it.

    Raises:
        FlytuneError: nothing was installed, as the bundle is for another target.
    """
    if installed.directory is None:
        raise FlytuneError(f"bundle was not installed: {installed.bundle}")
    changes = _with_previous(installed, os.environ)
    changes = _with_children(str(installed.directory), changes, os.environ)
    return {name: value for name, value, _ in changes}


def _unused(
    status: InstallStatus, bundle: Path | str, code: Code, reason: str
) -> Installed:
    flytune_hook.say(f"bundle not used: {reason} ({code})")
    return Installed(status, Path(bundle), (), code=code, reason=reason)


def _with_previous(
    installed: Installed, environment: Mapping[str, str]
) -> tuple[Change, ...]:
    return tuple(
        change._replace(previous=environment.get(change.name))
        for change in installed.changes
    )


def _with_children(
    directory: str, changes: tuple[Change, ...], environment: Mapping[str, str]
) -> tuple[Change, ...]:
    more: dict[str, str | None] = {
        "PYTHONPATH": python_path(environment),
        flytune_start.INSTALLED_VARIABLE: directory,
        STATUS_VARIABLE: status_directory(),
    }
    if BUNDLE_VARIABLE in environment:
        # Another one may be named there, for engines that are started without this.
        more[BUNDLE_VARIABLE] = None
    changes = changes + tuple(
        Change(name, value, environment.get(name)) for name, value in more.items()
    )
    row = json.dumps(_pairs(changes))
    return (*changes, Change(flytune_hook.CHANGES_VARIABLE, row, None))


def python_path(environment: Mapping[str, str]) -> str:
    """Return a PYTHONPATH with which each Python child arms flytune's hook."""
    hook_path = str(Path(flytune_hook.__file__).parent)
    paths = [hook_path, *filter(None, [environment.get("PYTHONPATH")])]
    return os.pathsep.join(paths)


def _apply(changes: tuple[Change, ...], environment: Any) -> None:
    for name, value, _ in changes:
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value


def _pairs(changes: tuple[Change, ...]) -> dict[str, tuple[str | None, str | None]]:
    return {name: (value, previous) for name, value, previous in changes}
