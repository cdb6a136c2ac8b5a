"""What serving under a policy would find in a bundle, as far as policies tell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flytune.caches.bundle import ARCHIVE_SUFFIX, Bundle
from flytune.caches.lists import TunedList
from flytune.caches.manifest import Manifest, parse_object
from flytune.caches.policy import ServingPolicy
from flytune.caches.regression.finding import (
    BUNDLE,
    Finding,
    Kind,
    found,
    noted,
    quoted,
)
from flytune.caches.regression.sides import Sides
from flytune.caches.words import counted
from flytune.shapes.errors import FlytuneError, about

_POLICY_LIMIT_BYTES = 2**20
# What a policy holds where it does not say so.
_DEFAULTS: Mapping[str, Any] = {
    "device": "cpu",
    "dynamic": False,
    "portable_keys": False,
}
# Room for Dynamo's entries, which is in no key.
_ROOM = ("dynamo.recompile_limit", "dynamo.accumulated_recompile_limit")
# Nor are a name, and what installing a bundle does by itself.
_OWN = ("name", "portable_keys")
# What is said with a setting, in one line: a policy has the threads of its device, and
# a variable for them.
_WITH: Mapping[str, Sequence[str]] = {
    "device": ("threads", "env.OMP_NUM_THREADS"),
    "threads": ("env.OMP_NUM_THREADS",),
}


@dataclass(frozen=True, slots=True)
class Serving:
    """The policy that a server runs under."""

    policy: Mapping[str, Any]
    """As a manifest's `policy`."""
    source: str
    """Where it is from, in words."""

    @classmethod
    def read(cls, path: Path) -> "Serving":
        """Read the policy of a JSON file or of a bundle.

        Raises:
            FlytuneError: it is neither, or the policy is malformed.
        """
        if _names_bundle(path):
            with about(path):
                return cls(Bundle.open(path).manifest.policy, f"`{path}`")
        try:
            with path.open("rb") as file:
                text = file.read(_POLICY_LIMIT_BYTES + 1)
        except OSError as error:
            raise FlytuneError(
                f"cannot read serving policy: {path}: {error.strerror}"
            ) from error
        if len(text) > _POLICY_LIMIT_BYTES:
            raise FlytuneError(f"serving policy is too large: {path}")
        with about(path, "give the `policy` of a bundle's manifest, or the bundle"):
            row = parse_object(text, "serving policy")
            ServingPolicy.from_json(row)
        return cls(row, f"`{path}`")

    @classmethod
    def of(cls, manifest: Manifest) -> "Serving":
        """Return the policy that a baseline is served under."""
        return cls(manifest.policy, "the baseline's")


def predicted(sides: Sides, serving: Serving | None) -> Iterator[Finding]:
    """Yield what serving would miss in the new bundle, and what else differs.

    Args:
        serving: None for the baseline's own policy.
    """
    new, old = sides.new.manifest, sides.old.manifest
    asked = serving or Serving.of(old)
    misses = list(_misses(new.policy, asked, sides))
    yield from misses
    missed = {
        name
        for values in (finding.values for finding in misses)
        for name in (values.get("setting"), *values.get("besides", ()))
    }
    yield from _differences(_flat(old.policy), _flat(new.policy), missed)
    # The policy sets some of all settings.
    own = {f"inductor_config.{n}" for n in new.policy.get("inductor") or {}}
    same_torch = sides.old.software("torch") == sides.new.software("torch")
    settings = [
        {f"inductor_config.{name}": value for name, value in m.inductor_config.items()}
        for m in (old, new)
    ]
    if same_torch:
        yield from _differences(settings[0], settings[1], own)
    elif settings[0] != settings[1]:
        names = settings[0].keys() | settings[1].keys()
        count = sum(settings[0].get(n) != settings[1].get(n) for n in names)
        text = f"Inductor's settings that differ by the release of torch: {count}"
        yield found(Kind.POLICY, BUNDLE, text)


def _misses(
    policy: Mapping[str, Any], asked: Serving, sides: Sides
) -> Iterator[Finding]:
    wanted, baked = _flat(asked.policy), _flat(policy)
    values = {
        name: (_value(wanted, name), _value(baked, name))
        for name in (*_WITH, *sorted(wanted.keys() | baked.keys() - _WITH.keys()))
        if name not in (*_ROOM, *_OWN, "tokens")
    }
    differ = [name for name, (serves, holds) in values.items() if serves != holds]
    while differ:
        name, *differ = differ
        serves, holds = values[name]
        text = (
            f"{name}: serving has {quoted(serves)}, the bundle was baked with "
            f"{quoted(holds)}: every graph misses ({asked.source})"
        )
        besides = [other for other in _WITH.get(name, ()) if other in differ]
        differ = [other for other in differ if other not in besides]
        for other in besides:
            text += f"; {other}: {' and '.join(map(quoted, values[other]))}"
        hint = "serve under the new policy: --serving-policy NEW says that you do"
        if name == "device":
            hint = "build for the device that serves"
        said = {"setting": name, "serving": serves, "baked": holds, "besides": besides}
        yield found(Kind.MISSES, BUNDLE, text, hint, **said)
    yield from _sizes(policy, asked, sides.old.lists)


def _sizes(
    policy: Mapping[str, Any], asked: Serving, lists: Sequence[TunedList]
) -> Iterator[Finding]:
    """Find the static sizes that serving has and the bundle lacks."""
    sizes = asked.policy.get("tokens") or ()
    baked = policy.get("tokens") or ()
    if not policy.get("dynamic"):
        absent = sorted(set(sizes) - set(baked))
        for size in absent:
            count = sum(one.shape.m == size for one in lists)
            text = f"size {size}: serving has it, the bundle has no graph of it"
            if count:
                text += f"; the baseline has {counted(count, 'list')} of this size"
            yield found(Kind.MISSES, BUNDLE, f"{text} ({asked.source})", size=size)
    limit = _flat(asked.policy).get(_ROOM[0])
    if (
        isinstance(limit, int)
        and not asked.policy.get("dynamic")
        and limit < len(sizes)
    ):
        text = f"{_ROOM[0]}: {limit} is below the {len(sizes)} sizes of serving: the "
        yield found(Kind.MISSES, BUNDLE, text + "last fall back to eager", limit=limit)


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], said: set[Any]
) -> Iterator[Finding]:
    for name in sorted(old.keys() | new.keys()):
        was, now = _value(old, name), _value(new, name)
        if was == now or name in said:
            continue
        text = f"{name}: was {quoted(was)}, is {quoted(now)}"
        yield noted(Kind.POLICY, BUNDLE, text, setting=name, old=was, new=now)


def _value(flat: Mapping[str, Any], name: str) -> Any:
    return flat.get(name, _DEFAULTS.get(name, "absent"))


def _flat(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's settings by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in policy.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": one for key, one in value.items()}
        else:
            flat[name] = value
    return flat


def _names_bundle(path: Path) -> bool:
    text = str(path)
    return path.is_dir() or text.endswith(ARCHIVE_SUFFIX) or "@sha256:" in text
