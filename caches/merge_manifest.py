"""What the manifests of bundles have in common, and the one of all of them."""

import importlib.metadata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flytune.caches.bundle import Bundle
from flytune.caches.codes import Code
from flytune.caches.manifest import MANIFEST_SCHEMA, Manifest, canonical_json
from flytune.caches.ranks import WORLD_SIZE
from flytune.caches.several import parts_of, program_of
from flytune.caches.target import PartStatus, Target, compare
from flytune.shapes.errors import FlytuneError

# Room for sizes: bundles that are served together need the sum.
_LIMITS = ("recompile_limit", "accumulated_recompile_limit")
_ABSENT = "absent"
_FROM = "merged_from"
"""Of `coverage`: digests, each of a bundle."""


def check_together(bundles: Sequence[Bundle]) -> None:
    """Check that bundles are for one target and served under one policy.

    Raises:
        FlytuneError: they are not: in what they differ, with both values.
    """
    first, *others = bundles
    for other in others:
        one, two = first.manifest, other.manifest
        for what, name, old, new in (
            *_other_targets(one, two),
            *_other_settings(one, two),
        ):
            raise FlytuneError(
                f"bundles {what}: {name}: `{old}` in {first.path}, `{new}` in "
                f"{other.path}",
                hint="different ones may be pushed to one tag: flytune push",
                code=Code.UNMERGED,
            )


def joined_manifest(
    bundles: Sequence[Bundle],
    conflicts: Sequence[str],
    provenance: Mapping[str, Any],
) -> tuple[Manifest, tuple[Mapping[str, Any], ...]]:
    """Return the manifest of all that bundles hold, not yet verified, and its parts.

    Args:
        bundles: Which go together, oldest first.
        conflicts: A line each.
        provenance: Of the merge; each part has that of its bundle.

    Raises:
        FlytuneError: the program of one is malformed.
    """
    newest = bundles[-1].manifest
    manifests = [bundle.manifest for bundle in bundles]
    parts = _distinct_parts(manifests)
    origins = {origin for bundle in bundles for origin in merged_from(bundle)}
    stated: dict[str, Any] = {_FROM: sorted({*origins, *(b.digest for b in bundles)})}
    if conflicts:
        stated["conflicts"] = list(conflicts)
    common = replace(
        newest,
        flytune=importlib.metadata.version("flytune"),
        target=_joined_target(manifests),
        timed_on=", ".join(sorted(filter(None, {m.timed_on for m in manifests})))
        or None,
        winners=_distinct(row for m in manifests for row in m.winners),
        verify=None,
        provenance=provenance,
        files={},
        schema=MANIFEST_SCHEMA,
    )
    if len(parts) == 1:
        coverage = {**newest.coverage, **stated}
        return replace(common, coverage=coverage), parts
    models = _distinct(sorted((part["model"] for part in parts), key=canonical_json))
    names = sorted({str(model.get("name")) for model in models})
    merged = replace(
        common,
        model=models[0]
        if len(models) == 1
        else {"name": " + ".join(names), "models": list(models)},
        program=program_of(parts),
        policy=_joined_policy([part["policy"] for part in parts]),
        coverage={"merged": len(parts), **stated},
        bake=_joined_bake([part["bake"] for part in parts]),
    )
    return merged, parts


def merged_from(bundle: Bundle) -> tuple[str, ...]:
    """Return the digests of the bundles that one was merged from, if it was."""
    return tuple(bundle.manifest.coverage.get(_FROM, ()))


def _other_targets(one: Manifest, two: Manifest) -> Iterator[tuple[str, str, Any, Any]]:
    targets = Target.from_json(one.target), Target.from_json(two.target)
    for part in compare(*targets):
        if part.status is PartStatus.MISS:
            yield "are for different targets", part.part, part.built, part.live
    if one.software != two.software:
        yield "are for different targets", "software", one.software, two.software


def _other_settings(
    one: Manifest, two: Manifest
) -> Iterator[tuple[str, str, Any, Any]]:
    kinds = [
        "kernels for a build" if m.compiled_only else "a baked program"
        for m in (one, two)
    ]
    if kinds[0] != kinds[1]:
        yield "hold different things", "content", kinds[0], kinds[1]
    ranks = [(m.bake.get("ranks") or {}).get(WORLD_SIZE) for m in (one, two)]
    if None not in ranks and ranks[0] != ranks[1]:
        yield "are for launches of different sizes", "ranks", ranks[0], ranks[1]
    rows = [_flat_policy(m.policy) for m in (one, two)]
    rows_config = [
        {f"inductor_config.{k}": v for k, v in m.inductor_config.items()}
        for m in (one, two)
    ]
    for old, new in (rows, rows_config):
        for name in sorted(old.keys() | new.keys()):
            values = old.get(name, _ABSENT), new.get(name, _ABSENT)
            if values[0] != values[1]:
                yield "have different policies", name, values[0], values[1]


def _flat_policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be the same where bundles are served together."""
    flat: dict[str, Any] = {}
    for name, value in policy.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": one for key, one in value.items()}
        elif name != "tokens":
            flat[name] = value
    return {k: v for k, v in flat.items() if k.removeprefix("dynamo.") not in _LIMITS}


def _distinct_parts(manifests: Sequence[Manifest]) -> tuple[Mapping[str, Any], ...]:
    """Return the parts, the newest of the same program and policy, in a fixed order."""
    found: dict[bytes, Mapping[str, Any]] = {}
    for manifest in manifests:
        for part in parts_of(manifest):
            key = canonical_json([part[n] for n in ("model", "program", "policy")])
            if key not in found or found[key]["created"] <= part["created"]:
                found[key] = part
    return tuple(found[key] for key in sorted(found))


def _joined_target(manifests: Sequence[Manifest]) -> dict[str, dict[str, Any]]:
    """Return the newest target; what it does not know comes from the others."""
    whole: dict[str, dict[str, Any]] = {"hardware": {}, "software": {}}
    for manifest in manifests:
        for name, parts in manifest.target.items():
            known = {k: v for k, v in parts.items() if v is not None}
            whole[name] = {**dict.fromkeys(parts), **whole.get(name, {}), **known}
    return whole


def _joined_policy(policies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged = dict(policies[0])
    if any("tokens" in policy for policy in policies):
        tokens = {count for policy in policies for count in policy.get("tokens", ())}
        merged["tokens"] = sorted(tokens)
    dynamo = [policy.get("dynamo", {}) for policy in policies]
    limits = {
        name: sum(settings[name] for settings in dynamo)
        for name in _LIMITS
        if all(name in settings for settings in dynamo)
    }
    if limits:
        merged["dynamo"] = {**dynamo[0], **limits}
    return merged


def _joined_bake(bakes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    dropped = [bake.get("dropped_guards") for bake in bakes]
    guards = sorted({name for names in dropped for name in names or ()})
    remaining: Counter[str] = Counter()
    for bake in bakes:
        remaining.update(bake.get("remaining") or {})
    ranks = [bake["ranks"] for bake in bakes if bake.get("ranks")]
    shared = all(row["shared"] for row in ranks)
    return {
        "passes": [one for bake in bakes for one in bake.get("passes", ())],
        "settled": all(bake.get("settled") for bake in bakes),
        "remaining": dict(remaining),
        "dropped_guards": None if all(d is None for d in dropped) else guards,
        **({"ranks": {**ranks[0], "shared": shared}} if ranks else {}),
    }


def _distinct(rows: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return each row once, in the order of its last appearance."""
    found: dict[bytes, Mapping[str, Any]] = {}
    for row in rows:
        key = canonical_json(row)
        found.pop(key, None)
        found[key] = row
    return tuple(found.values())
