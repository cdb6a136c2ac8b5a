"""Which part of a bundle each file is, for its size to be told by part."""

from collections.abc import Mapping

from flytune.caches.directories import FLYDSL_DIR, TRITON_DIR
from flytune.caches.manifest import FileEntry

PARTS = (
    *("graphs", "precompiled", "triton", "flydsl", "cpp", "timings", "sources"),
    *("kernels", "megacache", "keys", "records", "other"),
)
"""In the order in which they are listed."""
_OF_CACHES = {
    "fxgraph": "graphs",
    "aotautograd": "graphs",
    "dynamo": "precompiled",
    "cache": "timings",
    TRITON_DIR: "triton",
    FLYDSL_DIR: "flydsl",
}
_OF_BUNDLE = {
    "kernels": "kernels",
    "megacache.bin": "megacache",
    "keys.json": "keys",
    "records.parquet": "records",
}
_CPP = (".cpp", ".so", ".load_ok", ".h", ".gch", ".o")


def part_of(path: str) -> str:
    """Return the part, one of `PARTS`, that a file of a bundle belongs to."""
    first, _, rest = path.partition("/")
    if first != "inductor":
        return _OF_BUNDLE.get(first, "other")
    folder = rest.partition("/")[0]
    if folder in _OF_CACHES:
        return _OF_CACHES[folder]
    if path.endswith(_CPP):
        return "cpp"
    return "sources" if path.endswith((".py", ".best_config")) else "other"


def sizes(files: Mapping[str, FileEntry]) -> dict[str, tuple[int, int]]:
    """Return the number of files and their bytes, by part, without empty parts."""
    found = {part: (0, 0) for part in PARTS}
    for path, entry in files.items():
        number, size_bytes = found[part_of(path)]
        found[part_of(path)] = (number + 1, size_bytes + entry.size_bytes)
    return {part: counted for part, counted in found.items() if counted[0]}
