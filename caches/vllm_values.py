"""The factors of vLLM's configs by name: what each hash is made of, as text.

A config says by its own `compute_hash` what it hashes, so it is asked through an object
that remembers what was read of it. Runs in vLLM's interpreter alone.
"""

import enum
import hashlib
import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from flytune.caches.compat import changed_interface, private

# A longer value is told by its start and its digest.
_LONGEST = 200


class Reads:
    """A config, and every field that was read of it."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self.seen: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._config, name)
        if not name.startswith("__") and not isinstance(value, types.MethodType):
            self.seen[name] = value
        return value


def config_factors(config: Any, digest: str) -> dict[str, dict[str, Any]]:
    """Return each part of a `VllmConfig` that is hashed: its `hash` and `factors`.

    Args:
        digest: What the config's own `compute_hash` gave.

    Raises:
        FlytuneError: its hash does not come from what was read of it.
    """
    seen, found = _read(config)
    if found != digest:
        raise changed_interface("vllm.config", "VllmConfig.compute_hash")
    parts = {}
    for name, value in seen.items():
        if hasattr(value, "compute_hash"):
            parts[name] = {
                "hash": value.compute_hash(),
                "factors": dict(_of_config(value)),
            }
        elif name == "additional_config" and value:
            parts[name] = {
                "hash": _digest(repr(value)),
                "factors": dict(flat("", value)),
            }
    return parts


def _of_config(config: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in _read(config)[0].items():
        if hasattr(value, "compute_hash"):
            yield from _of_config(value, f"{prefix}{name}.")
        else:
            yield from flat(f"{prefix}{name}", value)


def _read(config: Any) -> tuple[dict[str, Any], str]:
    """Return what a config's hash reads of it, in that order, and the hash."""
    reads = Reads(config)
    try:
        digest = type(config).compute_hash(reads)
    except TypeError:
        # Those that copy themselves whole take no other object: they hash all fields.
        seen = {f.name: getattr(config, f.name) for f in fields(config)}
        return seen, str(config.compute_hash())
    return reads.seen, str(digest)


def flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield a value by its leaves, as ("name.inner.leaf", text).

    What vLLM could not hash has no text and is left out.
    """
    if (row := _mapping(value)) is not None:
        for key, inner in row.items():
            yield from flat(f"{name}.{key}" if name else str(key), inner)
        return
    if isinstance(value, Mapping):
        yield name, "{}"
        return
    if isinstance(value, enum.Enum):
        yield name, value.name
        return
    try:
        plain = private("vllm.config.utils", "normalize_value")[2](value)
    except TypeError:
        return
    yield name, _text(plain)


def _mapping(value: Any) -> Mapping[str, Any] | None:
    """Return what a value holds by name; None where it is a leaf."""
    if isinstance(value, type):
        return None
    if isinstance(value, Mapping):
        return value or None
    to_json = getattr(value, "to_json_string", None)
    if callable(to_json):
        row = json.loads(to_json())
        return row if isinstance(row, dict) else None
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return None


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... sha256:{_digest(text)[:16]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
