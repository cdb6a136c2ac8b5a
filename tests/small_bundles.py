"""A bundle for this very host that is soon made, and has no program to run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flytune.caches.keyring import own_key
from flytune.caches.manifest import Manifest
from flytune.caches.packing import pack
from flytune.caches.target import Target


def bare_manifest(**changes: Any) -> Manifest:
    """The manifest of a bundle of nothing, but for its changes."""
    whole: dict[str, Any] = {
        "created": "2026-01-02T03:04:05Z",
        "flytune": "0.1.0",
        "model": {},
        "program": {},
        "policy": {},
        "inductor_config": {},
        "target": {"hardware": {}, "software": {}},
        "software": "serving",
        "timed_on": None,
        "coverage": {},
        "winners": (),
        "bake": {},
    }
    return Manifest(**(whole | changes))


def small_bundle(
    folder: Path, *, signed: bool = True, provenance: Mapping[str, Any] | None = None
) -> Path:
    """One graph of a model that one thread serves."""
    staged = folder / "staged"
    (staged / "inductor" / "fxgraph").mkdir(parents=True)
    (staged / "inductor" / "fxgraph" / "g").write_bytes(b"graph")
    manifest = bare_manifest(
        model={"name": "tiny"},
        policy={"threads": 1},
        target=Target.here(threads=1).to_json(),
        provenance=provenance or {},
    )
    keys = [own_key()] if signed else []
    return pack(staged, manifest, folder / "b.tar.zst", keys=keys)
