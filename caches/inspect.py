"""What a bundle holds, in words and as one JSON object."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.bundle import Bundle
from flytune.caches.manifest import Manifest
from flytune.caches.placing import CACHES

_SHOWN_WINNERS = 12


def describe(path: Path | str) -> str:
    """Return a bundle's manifest in words, a fact a line.

    Raises:
        FlytuneError: there is no bundle, or its manifest breaks a rule.
    """
    bundle = Bundle.open(path)
    manifest = bundle.manifest
    lines = [
        ("bundle", f"{bundle.path} ({bundle.digest[:16]})"),
        ("packed", f"{manifest.created} by flytune {manifest.flytune}"),
        ("model", _words(manifest.model)),
        ("program", _words(manifest.program)),
        ("hardware", _words(manifest.target["hardware"])),
        ("software", _words(manifest.target["software"])),
        ("built by", _software(manifest.software)),
        ("timed on", manifest.timed_on or _untimed(manifest)),
        ("policy", _words(manifest.policy)),
        ("coverage", _words(manifest.coverage)),
        ("bake", _words(manifest.bake)),
        ("verified", "no" if manifest.verify is None else _words(manifest.verify)),
        *_files(bundle),
        *_winners(manifest.winners),
    ]
    return "\n".join(f"{name:<10}{text}" for name, text in lines)


def _untimed(manifest: Manifest) -> str:
    if manifest.compiled_only:
        return "nothing: candidates were compiled, for a build where the device is"
    return "nothing: no list had a choice that could be timed"


def summary(path: Path | str) -> dict[str, Any]:
    """Return what `describe` says as one JSON row, without the list of files.

    Raises:
        FlytuneError: there is no bundle, or its manifest breaks a rule.
    """
    bundle = Bundle.open(path)
    manifest = bundle.manifest
    return {
        "bundle": str(bundle.path),
        "digest": bundle.digest,
        "schema": manifest.schema,
        "created": manifest.created,
        "flytune": manifest.flytune,
        "model": manifest.model,
        "program": manifest.program,
        "target": manifest.target,
        "software": manifest.software,
        "timed_on": manifest.timed_on,
        "policy": manifest.policy,
        "coverage": manifest.coverage,
        "bake": manifest.bake,
        "verify": manifest.verify,
        "winners": list(manifest.winners),
        "files": len(manifest.files),
        "size_bytes": sum(f.size_bytes for f in manifest.files.values()),
    }


def _files(bundle: Bundle) -> Iterator[tuple[str, str]]:
    files = bundle.manifest.files
    caches = [f.size_bytes for p, f in files.items() if p.startswith(f"{CACHES}/")]
    whole = sum(f.size_bytes for f in files.values())
    yield "files", f"{len(files)}, {_size(whole)} unpacked"
    yield "caches", f"{len(caches)}, {_size(sum(caches))}"


def _winners(winners: tuple[Mapping[str, Any], ...]) -> Iterator[tuple[str, str]]:
    yield "winners", str(len(winners))
    for winner in winners[:_SHOWN_WINNERS]:
        yield "", _words(winner)
    if len(winners) > _SHOWN_WINNERS:
        yield "", f"and {len(winners) - _SHOWN_WINNERS} more"


def _software(software: str) -> str:
    if software == "serving":
        return "the serving environment's own torch and Triton"
    return "stand-in software: install refuses it"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        words = (f"{name} {_words(part)}" for name, part in value.items())
        return ", ".join(words) or "none"
    if isinstance(value, list | tuple):
        return " ".join(_words(part) for part in value) or "none"
    return "unknown" if value is None else str(value)
