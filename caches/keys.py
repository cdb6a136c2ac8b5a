"""The graph keys that a bundle was baked with, to say which part of a miss differs.

Stored as `keys.json` beside the manifest: nearly all of a key's parts are Inductor's
settings and the same for every graph, so they are stored once.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flytune.caches.ledger import Lookup
from flytune.shapes.errors import FlytuneError

KEYS_NAME = "keys.json"
# What stands between the fields of a tensor's description.
_FIELD = re.compile(r", (?=\w+=)")
# Differing parts that one explanation names.
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class GraphKey:
    """One baked graph's key."""

    key: str
    parts: Mapping[str, str]
    """Name -> "hash value", the value cut for a person."""


def graph_keys(lookups: Iterable[Lookup]) -> tuple[GraphKey, ...]:
    """Return the distinct keys that Inductor's graph cache was asked for."""
    found = {k.key: GraphKey(k.key, k.parts) for k in lookups if k.layer == "fx"}
    return tuple(found[key] for key in sorted(found) if key)


def write_keys(keys: Iterable[GraphKey], path: Path) -> None:
    """Write the keys with their common parts once."""
    keys = tuple(keys)
    common: dict[str, str] = dict(keys[0].parts) if keys else {}
    for key in keys[1:]:
        common = {k: v for k, v in common.items() if key.parts.get(k) == v}
    graphs = [
        {
            "key": key.key,
            "parts": {k: v for k, v in key.parts.items() if k not in common},
        }
        for key in keys
    ]
    text = json.dumps({"common": common, "graphs": graphs}, indent=1, sort_keys=True)
    path.write_text(text + "\n")


def read_keys(path: Path) -> tuple[GraphKey, ...]:
    """Read what `write_keys` wrote.

    Raises:
        FlytuneError: the file is not of that form.
    """
    try:
        row = json.loads(path.read_text())
        return tuple(
            GraphKey(str(g["key"]), {**row["common"], **g["parts"]})
            for g in row["graphs"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FlytuneError(f"bundle's keys cannot be read: {path.name}") from error


def explain_miss(lookup: Lookup, baked: Iterable[GraphKey]) -> tuple[str, ...]:
    """Say which parts of a missed key differ from the baked key that is nearest.

    One line a part, "name: baked VALUE, here VALUE".
    """
    differences = [_differing(lookup.parts, graph.parts) for graph in baked]
    if not differences:
        return ("the bundle holds no graph",)
    nearest = min(differences, key=len)
    if not nearest:
        return ("the key is the same, and the graph's file is absent or unreadable",)
    lines = [
        f"{name}: {_both(_value(was), _value(now))}"
        for name, was, now in nearest[:_SHOWN]
    ]
    if len(nearest) > _SHOWN:
        lines.append(f"and {len(nearest) - _SHOWN} more parts")
    return tuple(lines)


def _differing(
    live: Mapping[str, str], baked: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Return (name, baked, live) of the parts whose hashes differ."""
    names = [*baked, *(name for name in live if name not in baked)]
    absent = "- absent"
    return [
        (name, baked.get(name, absent), live.get(name, absent))
        for name in names
        if baked.get(name, absent).split()[0] != live.get(name, absent).split()[0]
    ]


def _both(was: str, now: str) -> str:
    """Say what differs of two values, of tensors the fields alone that do."""
    if was == now:
        return f"another value, which reads the same: `{was}`"
    fields = [_FIELD.split(value) for value in (was, now)]
    if len(fields[0]) == len(fields[1]) > 1:
        pairs = zip(*fields, strict=True)
        was, now = map(", ".join, zip(*(p for p in pairs if p[0] != p[1]), strict=True))
    return f"baked `{was}`, here `{now}`"


def _value(part: str) -> str:
    digest, _, value = part.partition(" ")
    return value or digest
