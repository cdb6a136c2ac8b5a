"""What a bundle holds, in words and as one JSON object."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.bundle import Bundle
from flytune.caches.keyring import read_keyring
from flytune.caches.manifest import Manifest
from flytune.caches.parts import sizes
from flytune.caches.several import SEVERAL, part_name, parts_of
from flytune.caches.trust import HERE, Signer, Trust, signers

_SHOWN_WINNERS = 12
_LONGEST_WORD = 128


def describe(path: Path | str, *, check: bool = False, trust: Trust = HERE) -> str:
    """Return a bundle's manifest in words, a fact a line.

    Args:
        check: check all the other files too.

    Raises:
        FlytuneError: there is no bundle, its manifest or signature breaks a rule, or,
            where that is checked, another file does.
    """
    bundle, signed_by = _opened(path, check, trust)
    manifest = bundle.manifest
    lines = [
        ("bundle", f"{bundle.path}@sha256:{bundle.digest}"),
        *_signers(signed_by),
        ("checked", _checked(bundle, check)),
        ("packed", f"{manifest.created} by flytune {manifest.flytune}"),
        ("model", words(manifest.model)),
        *(("program", text) for text in _programs(manifest)),
        ("hardware", words(manifest.target["hardware"])),
        ("software", words(manifest.target["software"])),
        ("built by", _software(manifest.software)),
        ("origin", words(manifest.provenance)),
        ("timed on", manifest.timed_on or _untimed(manifest)),
        ("policy", words(manifest.policy)),
        ("coverage", words(manifest.coverage)),
        ("bake", words(manifest.bake)),
        ("verified", "no" if manifest.verify is None else words(manifest.verify)),
        *_files(bundle),
        *_winners(manifest.winners),
    ]
    return "\n".join(f"{name:<10}{text}" for name, text in lines)


def _opened(
    path: Path | str, check: bool, trust: Trust
) -> tuple[Bundle, tuple[Signer, ...]]:
    bundle = Bundle.open(path)
    if check:
        bundle.check()
    return bundle, signers(bundle, read_keyring(trust.keys))


def _signers(signed_by: tuple[Signer, ...]) -> Iterator[tuple[str, str]]:
    for number, one in enumerate(signed_by):
        yield "" if number else "signed by", f"{one.keyid} ({one.standing})"
    if not signed_by:
        yield "signed by", "nobody"


def _checked(bundle: Bundle, check: bool) -> str:
    if check:
        return f"the manifest and {len(bundle.manifest.files)} files: all whole"
    return "the manifest alone; the files that it lists were not read (--check)"


def _programs(manifest: Manifest) -> Iterator[str]:
    if manifest.program.get("kind") == SEVERAL:
        yield from map(part_name, parts_of(manifest))
    else:
        yield words(manifest.program)


def _untimed(manifest: Manifest) -> str:
    if manifest.compiled_only:
        return "nothing: candidates were compiled, for a build where the device is"
    return "nothing: no list had a choice that could be timed"


def summary(
    path: Path | str, *, check: bool = False, trust: Trust = HERE
) -> dict[str, Any]:
    """Return what `describe` says as one JSON row, without the list of files.

    Raises:
        FlytuneError: as `describe` does.
    """
    bundle, signed_by = _opened(path, check, trust)
    manifest = bundle.manifest
    return {
        "bundle": str(bundle.path),
        "digest": bundle.digest,
        "signers": [one._asdict() for one in signed_by],
        "checked": check,
        "schema": manifest.schema,
        "created": manifest.created,
        "flytune": manifest.flytune,
        "provenance": manifest.provenance,
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
        "parts": {part: n for part, (_, n) in sizes(manifest.files).items()},
    }


def _files(bundle: Bundle) -> Iterator[tuple[str, str]]:
    files = bundle.manifest.files
    whole = sum(f.size_bytes for f in files.values())
    yield "files", f"{len(files)}, {size_text(whole)} unpacked"
    for part, (number, size_bytes) in sizes(files).items():
        yield "", f"{part} {size_text(size_bytes)} in {number}"


def _winners(winners: tuple[Mapping[str, Any], ...]) -> Iterator[tuple[str, str]]:
    yield "winners", str(len(winners))
    for winner in winners[:_SHOWN_WINNERS]:
        yield "", words(winner)
    if len(winners) > _SHOWN_WINNERS:
        yield "", f"and {len(winners) - _SHOWN_WINNERS} more"


def _software(software: str) -> str:
    if software == "serving":
        return "the serving environment's own torch and Triton"
    return "stand-in software: install refuses it"


def size_text(size_bytes: int) -> str:
    """Return a size in kB or MB."""
    if size_bytes < 1e6:
        return f"{size_bytes / 1e3:.1f} kB"
    return f"{size_bytes / 1e6:.1f} MB"


def words(value: Any) -> str:
    """Return a value of a manifest in words, one that is long shortened."""
    if isinstance(value, Mapping):
        parts = (f"{name} {words(part)}" for name, part in value.items())
        return ", ".join(parts) or "none"
    if isinstance(value, list | tuple):
        return " ".join(words(part) for part in value) or "none"
    word = "unknown" if value is None else str(value)
    # Triton's key is 1700 digits; --json has all of them.
    long = len(word) > _LONGEST_WORD and " " not in word
    return f"{word[:_LONGEST_WORD]}..." if long else word
