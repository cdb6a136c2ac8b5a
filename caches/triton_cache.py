"""Triton's cache directory: the files of a kernel, and the list that names them.

Each kernel has a folder, and in it a group file with the absolute path of every file.
Source: `FileCacheManager.put_group` in triton/runtime/cache.py.
"""

import json
from collections.abc import Iterable
from pathlib import Path

_GROUP = "__grp__"


def is_group(path: Path) -> bool:
    """Whether a file is the list of a kernel's files."""
    return path.name.startswith(_GROUP) and path.suffix == ".json"


def relocated_group(path: Path, names: Iterable[str]) -> bytes:
    """Return the group file at `path` that lists the files of its own folder.

    Args:
        names: Of all files of the folder, itself included.
    """
    children = {
        name: str(path.parent / name)
        for name in sorted(names)
        if not name.startswith(_GROUP)
    }
    return json.dumps({"child_paths": children}).encode()


def relocate(triton_dir: Path) -> None:
    """Make every kernel below a directory that was moved loadable where it is now.

    Raises:
        OSError: a group file cannot be replaced.
    """
    for path in triton_dir.rglob(f"{_GROUP}*.json"):
        names = [other.name for other in path.parent.iterdir()]
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(relocated_group(path, names))
        part.replace(path)
