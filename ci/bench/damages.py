"""What may be wrong with a bundle's files, before it is installed and after.

Every damage changes one file, or one folder, of a copy that nothing else uses.
"""

import io
import json
import os
import random
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import zstandard

Damage = Callable[[Path, random.Random], None]


def _keep(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a file's content and not its time, as a disk that fails does."""
    status = path.stat()
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _cut(path: Path, chance: random.Random) -> None:
    size = path.stat().st_size
    _keep(path, lambda content: content[: chance.randrange(size) if size else 0])


def _flip(path: Path, chance: random.Random) -> None:
    _keep(path, lambda content: flipped(content, chance))


def flipped(content: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one bit changed."""
    if not content:
        return b"\x01"
    changed = bytearray(content)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _folder(path: Path, _: random.Random) -> None:
    path.unlink()
    (path / "x").mkdir(parents=True)


def _link(path: Path, _: random.Random) -> None:
    # To the very content, where others may change it.
    elsewhere = _beside(path)
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _beside(path: Path) -> Path:
    """Return a place for a file outside of the bundle, which lies in a `root`."""
    root = next(parent for parent in path.parents if (parent / ROOT).exists())
    return root / f"{path.name}.elsewhere"


ROOT = ".damages"
"""Names the folder in which damaged copies lie, and links lead out of these."""


def _pipe(path: Path, _: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _swap(path: Path, chance: random.Random) -> None:
    others = [p for p in path.parent.rglob("*") if p.is_file() and p != path]
    content = b"of another file"
    if others:
        other = chance.choice(sorted(others))
        content = other.read_bytes()
        other.write_bytes(path.read_bytes())
    path.write_bytes(content)


FILE_DAMAGES: Mapping[str, Damage] = {
    "cut short": _cut,
    "empty": lambda path, _: path.write_bytes(b"") and None,
    "one bit": _flip,
    "zeros": lambda path, _: _keep(path, lambda content: bytes(len(content))),
    "twice in one": lambda path, _: _keep(path, lambda content: content * 2),
    "absent": lambda path, _: path.unlink(),
    "a folder instead": _folder,
    "a link instead": _link,
    "a pipe instead": _pipe,
    "swapped with another": _swap,
}
"""Of a plain file, in a bundle that is a directory or in an installed one."""


def _file_for_folder(path: Path, _: random.Random) -> None:
    path.rename(_beside(path))
    path.write_bytes(b"in the way")


FOLDER_DAMAGES: Mapping[str, Damage] = {
    "a file for a folder": _file_for_folder,
    "a link for a folder": _link,
}

_KINDS = {
    "a member that is a link": tarfile.SYMTYPE,
    "a member that is a device": tarfile.CHRTYPE,
    "a member that is a pipe": tarfile.FIFOTYPE,
    "a member that is a folder": tarfile.DIRTYPE,
}
_Members = list[tuple[str, bytes]]


def archives(
    content: bytes, other: bytes, chance: random.Random, count: int
) -> Iterator[tuple[str, bytes]]:
    """Yield archives that are not as they were packed, each with its kind.

    Args:
        content: of a whole one.
        other: of another bundle's.
        count: how many of each kind that has no end of them.
    """
    tar = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    members = _members(tar)
    for edge in _edges(members):
        yield "cut at a member's edge", _packed(tar[:edge])
    yield "empty", b""
    for _ in range(count):
        yield "cut short", content[: chance.randrange(len(content))]
        yield "one bit", flipped(content, chance)
        yield "one bit of its content", _packed(flipped(tar, chance))
        start = 512 * chance.randrange(len(tar) // 512)
        zeroed = tar[:start] + bytes(512) + tar[start + 512 :]
        yield "zeros", _packed(zeroed)
    yield "bytes after its end", content + b"\0"
    for number in range(len(members)):
        yield "a member twice", _tar([*members, members[number]])
        for kind, code in _KINDS.items():
            yield kind, _tar(members, {number: code})
        second = chance.randrange(len(members))
        swapped = list(members)
        swapped[number] = (members[number][0], members[second][1])
        swapped[second] = (members[second][0], members[number][1])
        yield "swapped with another", _tar(swapped)
    theirs = _members(zstandard.ZstdDecompressor().decompressobj().decompress(other))
    yield "another's manifest", _tar([theirs[0], *members[1:]])
    yield "another's signature", _tar([members[0], theirs[1], *members[2:]])


def _members(tar: bytes) -> _Members:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return [
            (info.name, file.read())
            for info in archive
            if (file := archive.extractfile(info)) is not None
        ]


def _edges(members: _Members) -> Iterator[int]:
    """Yield where each member, and each one's content, begins."""
    at = 0
    for name, content in members:
        whole = len(_member(name, content))
        yield at
        yield at + whole - len(content) - -len(content) % 512
        at += whole
    yield at
    yield at + 512


def _tar(members: _Members, kinds: Mapping[int, bytes] | None = None) -> bytes:
    parts = [
        _member(name, content, (kinds or {}).get(number, tarfile.REGTYPE))
        for number, (name, content) in enumerate(members)
    ]
    return _packed(b"".join(parts) + bytes(1024))


def _member(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def _packed(tar: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(tar)


def one_of_each(files: dict[str, bytes]) -> list[str]:
    """Return an installed file of each kind."""
    kinds: dict[tuple[str, str], str] = {}
    for name in files:
        if name.startswith("inductor/"):
            kinds.setdefault((what_of(name), Path(name).suffix), name)
    return sorted(kinds.values())


def what_of(name: str) -> str:
    """Return in words what an installed file holds; its name, of flytune's own."""
    if name.rpartition("/")[2].startswith("__grp__"):
        return "a list of Triton's"
    folder = name.split("/")[1:2]
    known = {"cache": "timings", "fxgraph": "a graph", "aotautograd": "a graph"}
    known |= {"triton": "a kernel of Triton's"}
    return known.get(folder[0], "code") if folder else name


def is_sound(content: bytes | None) -> bool:
    """Whether it is what serving may write: JSON, as timings are."""
    try:
        return content is not None and json.loads(content) is not None
    except ValueError:
        return False
