"""What each file of an installed bundle must hold."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.manifest import FileEntry, Manifest, canonical_json, sha256_hex
from flytune.caches.policy import inductor_without_flydsl
from flytune.caches.ranks import WORLD_SIZE
from flytune.caches.triton_cache import is_group, relocated_group

CACHES = "inductor"


def cache_files(manifest: Manifest) -> Collection[str]:
    """Return the paths of a bundle's files that are installed."""
    return [path for path in manifest.files if path.startswith(f"{CACHES}/")]


def groups_of(manifest: Manifest, target: Path) -> Mapping[str, bytes]:
    """Return each of Triton's lists as it must be for files that lie in `target`."""
    paths = cache_files(manifest)
    names = defaultdict(list)
    for path in paths:
        folder, _, name = path.rpartition("/")
        names[folder].append(name)
    return {
        path: relocated_group(target / path, names[path.rpartition("/")[0]])
        for path in paths
        if is_group(Path(path))
    }


def write_groups(
    directory: Path, groups: Mapping[str, bytes], paths: Iterable[str]
) -> None:
    """Write those of Triton's lists that are among the files of `directory`."""
    for path in paths:
        if path in groups:
            (directory / path).write_bytes(groups[path])


def rows_of(
    manifest: Manifest, target: Path, marker: Mapping[str, Any]
) -> dict[str, tuple[int, int, str]]:
    """Return what each installed file must be, and its time, for `damaged`."""
    groups = groups_of(manifest, target)
    rows = {}
    for path in cache_files(manifest):
        entry = manifest.files[path]
        if path in groups:
            entry = FileEntry(sha256_hex(groups[path]), len(groups[path]))
        mtime_ns = marker[path][1] if path in marker else -1
        rows[path] = (entry.size_bytes, mtime_ns, entry.sha256)
    return rows


def activation_of(manifest: Manifest) -> bytes:
    """What the hook needs, apart from the manifest, which may be large."""
    inductor = manifest.policy.get("inductor", {})
    return canonical_json(
        {
            "kind": manifest.target["hardware"].get("kind"),
            "software": manifest.target["software"],
            "inductor": inductor,
            "inductor_without_flydsl": inductor_without_flydsl(inductor),
            "dynamo": manifest.policy.get("dynamo", {}),
            "world_size": (manifest.bake.get("ranks") or {}).get(WORLD_SIZE),
            "portable_keys": manifest.policy.get("portable_keys", False),
        }
    )
