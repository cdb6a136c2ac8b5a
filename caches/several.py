"""A program that is several: what a merged bundle is verified by, one after another."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from flytune.caches.codes import Code
from flytune.caches.manifest import Manifest
from flytune.shapes.errors import FlytuneError

SEVERAL = "several"
"""The kind of such a program."""
_MAPPINGS = ("model", "program", "policy", "coverage", "bake", "provenance")


def parts_of(manifest: Manifest) -> tuple[Mapping[str, Any], ...]:
    """Return what a bundle was merged of, or the one part that a plain bundle is.

    Each has the `model`, `program`, `policy`, `coverage`, `bake`, `provenance` and
    `timed_on` of the bundle that it came in, and when that was `created`.

    Raises:
        FlytuneError: the program of a merged bundle is malformed.
    """
    if manifest.program.get("kind") != SEVERAL:
        names = (*_MAPPINGS, "timed_on", "created")
        return ({name: getattr(manifest, name) for name in names},)
    parts = manifest.program.get("parts")
    if not isinstance(parts, list) or not parts or not all(map(_is_part, parts)):
        raise FlytuneError(
            "program is malformed: `parts` of a merged bundle", code=Code.MANIFEST
        )
    return tuple(parts)


def program_of(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the program of a merged bundle."""
    return {"kind": SEVERAL, "parts": list(parts)}


def singles(manifest: Manifest) -> tuple[Manifest, ...]:
    """Return a manifest for each program of a bundle, under the policy it serves with.

    Raises:
        FlytuneError: as `parts_of`.
    """
    if manifest.program.get("kind") != SEVERAL:
        return (manifest,)
    return tuple(
        replace(
            manifest,
            model=part["model"],
            program=part["program"],
            policy={**manifest.policy, "tokens": part["policy"].get("tokens")},
        )
        for part in parts_of(manifest)
    )


def part_name(part: Mapping[str, Any]) -> str:
    """Name a part for a person, such as "tiny-llama at 1,8 tokens"."""
    return _name(part["model"], part["policy"])


def program_name(single: Manifest) -> str:
    """Name what a manifest of `singles` is of, as `part_name`."""
    return _name(single.model, single.policy)


def _name(model: Mapping[str, Any], policy: Mapping[str, Any]) -> str:
    ranks = [f" {n}{model[n]}" for n in ("tp", "ep") if model.get(n, 1) != 1]
    tokens = ",".join(map(str, policy.get("tokens") or ()))
    # A command's sizes are its own.
    at = f" at {tokens} tokens" if tokens else ""
    return f"{model.get('name')}{''.join(ranks)}{at}"


def _is_part(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and all(isinstance(part.get(name), Mapping) for name in _MAPPINGS)
        and isinstance(part["policy"].get("tokens", []), list)
        and isinstance(part.get("created"), str)
        and isinstance(part.get("timed_on"), str | None)
    )
