"""Installing a bundle for this process, or for the command that it becomes."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from flytune.caches.archive import BundleError, Fault
from flytune.caches.bundle import Bundle
from flytune.caches.codes import Code
from flytune.caches.device_profile import may_have_accelerator
from flytune.caches.directories import variables
from flytune.caches.home import status_directory
from flytune.caches.hook import flytune_hook, flytune_start
from flytune.caches.hook.flytune_files import read_marker
from flytune.caches.hook.flytune_status import STATUS_VARIABLE, Status
from flytune.caches.host import Part
from flytune.caches.installed import DIGEST_PREFIX, installed_path
from flytune.caches.manifest import MANIFEST_NAME, Manifest
from flytune.caches.placing import CACHES, place
from flytune.caches.target import PartResult, PartStatus, Target
from flytune.caches.variants import code_of, compare_parts, refusals
from flytune.shapes.errors import FlytuneError

# What the parent of a command can know of it; its Python may be another one.
_HOST_SOFTWARE = ("software.glibc", "software.compiler")


class InstallStatus(StrEnum):
    """What became of a bundle."""

    HIT = "hit"
    MISS = "miss"
    """It is for another target."""
    DISABLED = "disabled"
    """The environment says to do without."""
    ERROR = "error"
    """It is corrupt, or cannot be placed."""


class Change(NamedTuple):
    """One environment variable; None is unset."""

    name: str
    value: str | None
    previous: str | None


@dataclass(frozen=True, slots=True)
class Installed:
    """What an installation did; where it is no hit nothing was written."""

    status: InstallStatus
    bundle: Path
    parts: tuple[PartResult, ...]
    """Every part of the target, compared."""
    directory: Path | None = None
    changes: tuple[Change, ...] = ()
    """What serving's environment needs."""
    mended: tuple[str, ...] = ()
    """Files of an earlier installation that were damaged."""
    set_aside: tuple[str, ...] = ()
    """The same, where the bundle could not mend them; what they held is a miss."""
    digest: str = ""
    """The bundle's, where its manifest could be read."""
    code: Code | None = None
    """Why it is no hit."""
    reason: str = ""
    """The same in words."""
    held: int = -1
    """The descriptor by which the directory is held against `flytune gc`."""

    @property
    def misses(self) -> tuple[PartResult, ...]:
        """The parts that differ and decide."""
        return tuple(p for p in self.parts if p.status is PartStatus.MISS)


def install(
    bundle: Path | str,
    into: Path | str | None = None,
    *,
    strict: bool = False,
    children: bool = False,
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

    Raises:
        FlytuneError: strict, and the bundle is corrupt, cannot be placed or is for
            another target, or Inductor is imported already.
    """

    def armed() -> Installed:
        if "torch._inductor" in sys.modules:
            raise FlytuneError(
                "torch._inductor is imported already",
                hint="call flytune.caches.install before the first import of torch",
                code=Code.TOO_LATE,
            )
        installed = prepare(bundle, into, strict=strict)
        if installed.directory is not None:
            _arm(installed, children=children)
        return installed

    return _guarded(bundle, armed, strict=strict)


def attempt(
    bundle: Path | str,
    into: Path | str | None = None,
    *,
    strict: bool = False,
    command: bool = False,
) -> Installed:
    """Place a bundle, or say in one line why serving goes on without it.

    Args:
        strict: raise where it is not used, but for FLYTUNE_DISABLE.
        command: as for `prepare`.

    Raises:
        FlytuneError: strict, and as `prepare` does.
    """

    def prepared() -> Installed:
        return prepare(bundle, into, strict=strict, command=command)

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


def _arm(installed: Installed, *, children: bool) -> None:
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


def prepare(
    bundle: Path | str,
    into: Path | str | None = None,
    *,
    strict: bool = False,
    command: bool = False,
) -> Installed:
    """Place a bundle that is for this target; leave the environment as it is.

    Args:
        strict: raise on a miss, of which a line is said otherwise.
        command: it is for a command whose Python may be another: its software is
            compared there, by the hook.

    Raises:
        FlytuneError: the bundle is corrupt or cannot be placed, or, when strict, the
            target differs.
    """
    opened = _opened(bundle, into)
    changes = _changes(opened.manifest)
    parts = _compare(opened.manifest, command=command)
    missed = Installed(InstallStatus.MISS, opened.path, parts, digest=opened.digest)
    if missed.misses:
        reason = "; ".join(map(str, missed.misses))
        code = code_of(missed.misses[0])
        if strict:
            raise FlytuneError(f"bundle is for another target: {reason}", code=code)
        flytune_hook.say(f"bundle not used: {reason} ({code})")
        return replace(missed, code=code, reason=reason)
    placed = place(opened, None if into is None else Path(into))
    caches = variables(placed.directory / CACHES).items()
    return replace(
        missed,
        status=InstallStatus.HIT,
        directory=placed.directory,
        changes=(*changes, *(Change(*pair, None) for pair in caches)),
        mended=placed.mended,
        set_aside=placed.set_aside,
        held=placed.held,
    )


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


def _opened(bundle: Path | str, into: Path | str | None) -> Bundle:
    """Open a bundle, or one that is installed by its digest.

    Raises:
        FlytuneError: there is none, its manifest breaks a rule or is not the one that
            was installed, or a place is given for what has one.
    """
    if not str(bundle).startswith(DIGEST_PREFIX):
        return Bundle.open(bundle)
    if into is not None:
        raise FlytuneError(f"a digest names what is installed already: {bundle}")
    directory = installed_path(str(bundle))
    opened = Bundle.open(directory)
    if opened.digest != read_marker(str(directory))["bundle"]:
        raise BundleError(Fault.DIGEST, MANIFEST_NAME)
    return opened


def _unused(
    status: InstallStatus, bundle: Path | str, code: Code, reason: str
) -> Installed:
    flytune_hook.say(f"bundle not used: {reason} ({code})")
    return Installed(status, Path(bundle), (), code=code, reason=reason)


def _compare(manifest: Manifest, *, command: bool) -> tuple[PartResult, ...]:
    # An accelerator cannot be asked without torch: its parts stay unknown here, and
    # Inductor's own keys hold them.
    hardware: dict[str, Part] | None = None
    if manifest.target["hardware"].get("kind") != "cpu":
        hardware = {} if may_have_accelerator() else {"kind": "absent"}
    live = Target.here(threads=manifest.policy.get("threads"), hardware=hardware)
    parts = tuple(
        result
        for result in compare_parts(manifest, live)
        if not command
        or result.part.startswith("hardware.")
        or result.part in _HOST_SOFTWARE
    )
    return (*refusals(manifest), *parts)


def _changes(manifest: Manifest) -> tuple[Change, ...]:
    policy: Mapping[str, Any] = manifest.policy
    for name in ("env", "inductor", "dynamo"):
        if not isinstance(policy.get(name, {}), Mapping):
            raise FlytuneError(
                f"manifest policy is not an object: `{name}`", code=Code.POLICY
            )
    changes = []
    for name, value in policy.get("env", {}).items():
        plain = isinstance(value, str) and "\0" not in name + value
        if not (plain and name and "=" not in name):
            raise FlytuneError(
                f"manifest policy has a bad variable: {name!r}", code=Code.POLICY
            )
        changes.append(Change(name, value, None))
    return tuple(changes)


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
    hook_path = str(Path(flytune_hook.__file__).parent)
    paths = [hook_path, *filter(None, [environment.get("PYTHONPATH")])]
    more = {
        "PYTHONPATH": os.pathsep.join(paths),
        flytune_start.INSTALLED_VARIABLE: directory,
        STATUS_VARIABLE: status_directory(),
    }
    changes = changes + tuple(
        Change(name, value, environment.get(name)) for name, value in more.items()
    )
    row = json.dumps(_pairs(changes))
    return (*changes, Change(flytune_hook.CHANGES_VARIABLE, row, None))


def _apply(changes: tuple[Change, ...], environment: Any) -> None:
    for name, value, _ in changes:
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value


def _pairs(changes: tuple[Change, ...]) -> dict[str, tuple[str | None, str | None]]:
    return {name: (value, previous) for name, value, previous in changes}
