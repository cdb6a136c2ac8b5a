"""Installing a bundle for this process, or for the command that it becomes."""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from flytune.caches.bundle import Bundle
from flytune.caches.device_profile import may_have_accelerator
from flytune.caches.directories import variables
from flytune.caches.hook import flytune_hook
from flytune.caches.host import Part
from flytune.caches.manifest import Manifest
from flytune.caches.placing import CACHES, place
from flytune.caches.target import PartResult, PartStatus, Target
from flytune.caches.trust import HERE, Trust, admit
from flytune.caches.variants import compare_parts
from flytune.shapes.errors import FlytuneError

# What the parent of a command can know of it; its Python may be another one.
_HOST_SOFTWARE = ("software.glibc", "software.compiler")


class InstallStatus(StrEnum):
    """Whether the bundle is for this target."""

    HIT = "hit"
    MISS = "miss"


class Change(NamedTuple):
    """One environment variable; None is unset."""

    name: str
    value: str | None
    previous: str | None


@dataclass(frozen=True, slots=True)
class Installed:
    """What an installation did; on a miss nothing was written."""

    status: InstallStatus
    bundle: Path
    parts: tuple[PartResult, ...]
    """Every part of the target, compared."""
    directory: Path | None = None
    changes: tuple[Change, ...] = ()
    """What serving's environment needs."""
    mended: tuple[str, ...] = ()
    """Files of an earlier installation that were damaged."""

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
    trust: Iterable[Path | str] = (),
    allow_unsigned: bool = False,
) -> Installed:
    """Make this process serve from a bundle; call it before torch is imported.

    A bundle for another target changes nothing: one line on stderr says which part
    differs. torch's source is compared when it is imported; where it differs, all is
    set back.

    Args:
        into: the directory to install into; below `$FLYTUNE_HOME`, else
            `~/.cache/flytune`, where None.
        strict: raise on a miss.
        children: let every Python child of this process do the same, by way of
            PYTHONPATH; for engines that serve from worker processes.
        trust: files and folders of public keys whose bundles may be loaded, beside
            those that this user trusts.
        allow_unsigned: load a bundle that no such key signed; it runs code.

    Raises:
        UntrustedError: nobody vouches for the bundle here.
        FlytuneError: it is corrupt or cannot be placed, Inductor is imported
            already, or, when strict, the target differs.
    """
    if "torch._inductor" in sys.modules:
        raise FlytuneError(
            "torch._inductor is imported already",
            hint="call flytune.caches.install before the first import of torch",
        )
    trusted = Trust(tuple(map(Path, trust)), allow_unsigned)
    installed = prepare(bundle, into, strict=strict, trust=trusted)
    if installed.directory is None:
        return installed
    if (earlier := flytune_hook.armed()) is not None:
        earlier.disable(None)
    changes = _with_previous(installed, os.environ)
    if children:
        changes = _with_children(installed.directory, changes, os.environ)
    _apply(changes, os.environ)
    flytune_hook.arm(str(installed.directory), _pairs(changes))
    return installed


def prepare(
    bundle: Path | str,
    into: Path | str | None = None,
    *,
    strict: bool = False,
    command: bool = False,
    trust: Trust = HERE,
) -> Installed:
    """Place a bundle that is for this target; leave the environment as it is.

    Who signed it is asked at each use, also where it is installed already: a key may
    have been revoked since.

    Args:
        command: it is for a command whose Python may be another: its software is
            compared there, by the hook.

    Raises:
        FlytuneError: as `install` does.
    """
    opened = Bundle.open(bundle)
    admit(opened, trust)
    changes = _changes(opened.manifest)
    parts = _compare(opened.manifest, command=command)
    missed = Installed(InstallStatus.MISS, opened.path, parts)
    if missed.misses:
        reason = "; ".join(map(str, missed.misses))
        if strict:
            raise FlytuneError(f"bundle is for another target: {reason}")
        flytune_hook.say(f"bundle not used: {reason}")
        return missed
    directory, mended = place(opened, None if into is None else Path(into))
    caches = variables(directory / CACHES).items()
    return Installed(
        *(InstallStatus.HIT, opened.path, parts, directory),
        changes=(*changes, *(Change(*pair, None) for pair in caches)),
        mended=mended,
    )


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
    changes = _with_children(installed.directory, changes, os.environ)
    return {name: value for name, value, _ in changes}


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
    if manifest.compiled_only:
        only = PartResult(
            *("bundle", PartStatus.MISS, "another build", "serving"),
            reason="its candidates are compiled, and nothing is tuned or baked",
        )
        return (only, *parts)
    if manifest.software == "serving":
        return parts
    stand_in = PartResult(
        *("software", PartStatus.MISS, manifest.software, "serving"),
        reason="kernels hit only under the wheels that built them",
    )
    return (stand_in, *parts)


def _changes(manifest: Manifest) -> tuple[Change, ...]:
    policy: Mapping[str, Any] = manifest.policy
    for name in ("env", "inductor", "dynamo"):
        if not isinstance(policy.get(name, {}), Mapping):
            raise FlytuneError(f"manifest policy is not an object: `{name}`")
    changes = []
    for name, value in policy.get("env", {}).items():
        plain = isinstance(value, str) and "\0" not in name + value
        if not (plain and name and "=" not in name):
            raise FlytuneError(f"manifest policy has a bad variable: {name!r}")
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
    directory: Path, changes: tuple[Change, ...], environment: Mapping[str, str]
) -> tuple[Change, ...]:
    hook_path = str(Path(flytune_hook.__file__).parent)
    paths = [hook_path, *filter(None, [environment.get("PYTHONPATH")])]
    more = {
        "PYTHONPATH": os.pathsep.join(paths),
        flytune_hook.INSTALLED_VARIABLE: str(directory),
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
