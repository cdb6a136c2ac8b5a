"""Joining bundles for one target: ranks, models and token counts."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flytune.caches.bundle import Bundle
from flytune.caches.manifest import FileEntry, Manifest
from flytune.caches.merge_files import Source, join_files
from flytune.caches.merge_manifest import check_together, joined_manifest, merged_from
from flytune.caches.packing import check_absent, pack, publish
from flytune.caches.several import part_name, parts_of
from flytune.caches.trust import HERE, Trust, admit
from flytune.shapes.errors import FlytuneError, about

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of bundles that were joined."""

    out: Path
    manifest: Manifest
    parts: tuple[str, ...]
    """The programs that it serves, named for a person."""
    conflicts: tuple[str, ...]
    """Where a path or a list had several contents, and what was kept, a line each."""

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "bundle": str(self.out),
            "parts": list(self.parts),
            "files": len(self.manifest.files),
            "conflicts": list(self.conflicts),
        }


def merge(
    paths: Sequence[Path],
    out: Path,
    *,
    trust: Trust = HERE,
    provenance: Mapping[str, Any] | None = None,
    keys: Sequence["Ed25519PrivateKey"] = (),
) -> Merged:
    """Join bundles for one target and one policy; every file of each is kept.

    The order of the bundles does not matter: where they conflict the newest wins, by
    the time that its manifest says, then by its digest. One that another was merged
    from is in it. The result is not verified.

    Args:
        out: as for `pack`.
        trust: whose bundles may be joined: to sign what was joined is to vouch for it.
        provenance: of the merge.
        keys: as for `pack`; a bundle that is kept as it is keeps its own signature.

    Raises:
        UntrustedError: nobody vouches for one of the bundles here.
        FlytuneError: `out` exists, a bundle is corrupt, or they do not go together.
    """
    check_absent(out)
    found: dict[str, Bundle] = {}
    for path in paths:
        with about(path):
            bundle = Bundle.open(path)
            admit(bundle, trust)
        # One of two copies, whatever their order: conflicts tell its name.
        copies = (bundle, found.get(bundle.digest, bundle))
        found[bundle.digest] = min(copies, key=lambda one: one.path)
    if not found:
        raise FlytuneError("nothing to merge")
    check_together(tuple(found.values()))
    inside = {digest for bundle in found.values() for digest in merged_from(bundle)}
    bundles = sorted(
        (bundle for digest, bundle in found.items() if digest not in inside),
        key=lambda one: (one.manifest.created, one.digest),
    )
    with tempfile.TemporaryDirectory(prefix="flytune-merge-") as directory:
        sources = []
        for number, bundle in enumerate(bundles):
            placed = Path(directory) / str(number)
            bundle.place(placed)
            sources.append(Source(bundle, placed))
        staging = Path(directory) / "joined"
        staging.mkdir()
        files, conflicts = join_files(sources, staging)
        manifest, parts = joined_manifest(bundles, conflicts, provenance or {})
        if (whole := _whole(sources, files, parts)) is None:
            pack(staging, manifest, out, keys=keys)
        else:
            for name, content in whole.bundle.heads().items():
                (whole.placed / name).write_bytes(content)
            publish(whole.placed, out)
    manifest = Bundle.open(out).manifest
    return Merged(out, manifest, tuple(map(part_name, parts)), conflicts)


def _whole(
    sources: Sequence[Source],
    files: Mapping[str, FileEntry],
    parts: Sequence[Mapping[str, Any]],
) -> Source | None:
    """Return the one that holds all others already, which is kept as it is."""
    for source in sources:
        manifest = source.bundle.manifest
        if manifest.files == files and parts_of(manifest) == parts:
            return source
    return None
