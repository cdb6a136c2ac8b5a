"""The second policy of a bundle whose graphs may hold kernels of FlyDSL's.

A graph that imports FlyDSL fails on a host without it, and none of Inductor's keys says
so. Such a bundle is baked under a policy without FlyDSL too, into the same directory:
the backends are in every graph's key. Which policy a host serves under is told by what
is installed there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flytune.caches.codes import Code
from flytune.caches.host import installed
from flytune.caches.manifest import Manifest
from flytune.caches.policy import ServingPolicy, inductor_without_flydsl
from flytune.caches.target import PartResult, PartStatus, Target, compare

_FLYDSL = "flydsl"
_PART = f"software.{_FLYDSL}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which a bundle is served."""

    policy: ServingPolicy
    without: tuple[str, ...] = ()
    """Modules that its hosts lack."""


def variants_here(manifest: Manifest) -> Iterator[Variant]:
    """Yield what this host can serve: all that the bundle has, if FlyDSL is here."""
    policy = ServingPolicy.from_json(manifest.policy)
    without = policy.without_flydsl()
    built = manifest.target["software"].get(_FLYDSL)
    if without is None or installed(_FLYDSL) == built:
        yield Variant(policy)
    if without is not None:
        yield Variant(without, (_FLYDSL,))


def compare_parts(manifest: Manifest, live: Target) -> tuple[PartResult, ...]:
    """Compare a host with a bundle's target, as `compare` does.

    FlyDSL decides nothing where the bundle serves without it too.
    """
    parts = compare(Target.from_json(manifest.target), live)
    if inductor_without_flydsl(manifest.policy.get("inductor", {})) is None:
        return parts
    return tuple(
        replace(part, status=PartStatus.WARNING, reason="served without it")
        if part.part == _PART and part.status is PartStatus.MISS
        else part
        for part in parts
    )


def refusals(manifest: Manifest) -> tuple[PartResult, ...]:
    """Return why a bundle serves no host, as parts of it that differ."""
    found = []
    if manifest.compiled_only:
        why = "its candidates are compiled, and nothing is tuned or baked"
        found.append(("bundle", "another build", why))
    elif manifest.software != "serving":
        why = "kernels hit only under the wheels that built them"
        found.append(("software", manifest.software, why))
    return tuple(
        PartResult(part, PartStatus.MISS, built, "serving", reason=why)
        for part, built, why in found
    )


def code_of(part: PartResult) -> Code | None:
    """Return the code of a part that differs; None of one that does not."""
    if part.status is not PartStatus.MISS:
        return None
    codes = {"bundle": Code.COMPILED_ONLY, "software": Code.STAND_IN}
    owner = part.part.partition(".")[0]
    of_owner = Code.HARDWARE if owner == "hardware" else Code.SOFTWARE
    return codes.get(part.part, of_owner)
