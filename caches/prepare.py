"""Placing a bundle that is for this host, and what serving from it must set."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from flytune.caches.archive import BundleError, Fault
from flytune.caches.bundle import Bundle
from flytune.caches.codes import Code
from flytune.caches.device_profile import may_have_accelerator
from flytune.caches.directories import variables
from flytune.caches.expected import CACHES
from flytune.caches.hook import flytune_hook
from flytune.caches.hook.flytune_files import read_marker
from flytune.caches.host import Part
from flytune.caches.installed import DIGEST_PREFIX, installed_path
from flytune.caches.manifest import MANIFEST_NAME, Manifest
from flytune.caches.placing import place
from flytune.caches.target import PartResult, PartStatus, Target
from flytune.caches.trust import HERE, Trust, admit
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
        strict: raise on a miss, of which a line is said otherwise.
        command: it is for a command whose Python may be another: its software is
            compared there, by the hook.

    Raises:
        UntrustedError: nobody vouches for the bundle here.
        FlytuneError: it is corrupt or cannot be placed, or, when strict, the target
            differs.
    """
    opened = _opened(bundle, into)
    admit(opened, trust)
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
    # A whole digest vouches for every byte, as a pin does.
    return replace(opened, pinned=str(bundle) == DIGEST_PREFIX + opened.digest)


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


def environment_of(manifest: Manifest) -> dict[str, str]:
    """Return the variables of a bundle's policy.

    Raises:
        FlytuneError: the policy is malformed.
    """
    return {name: value for name, value, _ in _changes(manifest) if value is not None}


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
