"""Pushing and pulling small bundles, for the tests of it."""

from pathlib import Path
from typing import Any

import pytest

from flytune.caches.choice import Wanted
from flytune.caches.oci import (
    entries,
)
from flytune.caches.shipping import Shipped, pull, push, store_of
from flytune.caches.store import Reference
from flytune.caches.target import Target


def send(bundle: Path, reference: str) -> Shipped:
    parsed = Reference.parse(reference)
    return push(bundle, parsed, store_of(parsed, insecure=True))


def fetch(reference: str, out: Path | None = None, **wanted: Any) -> Shipped:
    parsed = Reference.parse(reference)
    return pull(parsed, store_of(parsed, insecure=True), Wanted(**wanted), out)


def held(reference: str) -> tuple[str, ...]:
    """The targets and ranks under a tag."""
    parsed = Reference.parse(reference)
    document = store_of(parsed, insecure=True).document(parsed.asked)
    names = ("target", "tp", "engine")
    return tuple(
        " ".join(entry.annotations[f"vnd.flytune.{name}"] for name in names)
        for entry in entries(document)
    )


def other(**hardware: Any) -> dict[str, Any]:
    target = Target.here(threads=1).to_json()
    target["hardware"].update(hardware)
    return target


def isolate(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Let nothing of this host's user count; return flytune's own directory."""
    patch.setenv("FLYTUNE_HOME", str(folder / "home"))
    patch.setenv("DOCKER_CONFIG", str(folder / "no-docker"))
    for name in ("FLYTUNE_CA", "REQUESTS_CA_BUNDLE"):
        patch.delenv(name, raising=False)
    patch.chdir(folder)
    return folder / "home"
