"""Mutations of a stored bundle: of its bytes, or of one layer in whole others.

What lies in an outer layer is made right again, so that the inner one is reached: an
archive is compressed anew, a header gets the checksum of what it holds.
"""

import base64
import copy
import functools
import hashlib
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import zstandard

MANIFEST, SIGNATURE = "manifest.json", "signature.json"
_END = bytes(2 * tarfile.BLOCKSIZE)
_NAMES = (
    *("/etc/passwd", "../x", "inductor/../../x", "..", ".", "", "a//b", "a/", "a\\b"),
    *(MANIFEST, SIGNATURE, f"{MANIFEST}/x", "keys.json", "keys.json/x", "inductor"),
    *("a" * 256, "b" * 99, "c/" * 600, "inductor/\N{SNOWMAN}", "inductor/x"),
)
_KINDS = (b"0", b"\0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"L", b"K", b"x", b"S")
_SIZES = (0, 1, 511, 512, 513, 2**20, 2**33, 2**40, 2**62)
_VALUES = (
    *(None, True, 0, -1, 1, 2, 3, 1.5, 1e308, 2**63, 10**400, "", "0" * 64, "A" * 64),
    *([], {}, [[]], {"": {}}, "../x", "\ud800", "\0", "x" * 5000, [0] * 99),
)
_TEXTS = (b"{", b"}", b"[" * 2000, b'"', b"\\u0000", b"NaN", b"9" * 5000, b"\xff", b",")

Members = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Seed:
    """A whole bundle to mutate."""

    name: str
    packed: bytes
    members: Members

    @classmethod
    def read(cls, path: Path) -> "Seed":
        packed = path.read_bytes()
        plain = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
        found = []
        at = 0
        while plain[at : at + tarfile.BLOCKSIZE] != bytes(tarfile.BLOCKSIZE):
            info = tarfile.TarInfo.frombuf(plain[at : at + 512], "utf-8", "strict")
            at += tarfile.BLOCKSIZE
            found.append((info.name, plain[at : at + info.size]))
            at += info.size + -info.size % tarfile.BLOCKSIZE
        names = [name for name, _ in found]
        # Long names take two members, which the seeds do without.
        assert len(set(names)) == len(names)
        return cls(path.name, packed, tuple(found))

    @property
    def has_signature(self) -> bool:
        """Whether somebody signed it."""
        return SIGNATURE in dict(self.members)

    @property
    def files(self) -> Mapping[str, bytes]:
        """What its manifest lists."""
        heads = (MANIFEST, SIGNATURE)
        return {name: text for name, text in self.members if name not in heads}


def mutated(seed: Seed, layer: str, random: Random) -> bytes:
    """Return an archive in which one layer of a bundle is another."""
    return LAYERS[layer](seed, random)


def mutated_bytes(content: bytes, random: Random) -> bytes:
    """Return some bytes with a few places changed, cut, repeated or added."""
    whole = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        start = random.randrange(len(whole) + 1)
        stop = min(len(whole), start + random.choice((1, 8, 64, 512, 4096)))
        action = random.randrange(7)
        if action == 0 and start < len(whole):
            whole[start] ^= 1 << random.randrange(8)
        elif action == 1 and start < len(whole):
            whole[start] = random.choice((0, 0x7F, 0x80, 0xFF))
        elif action == 2:
            del whole[start:stop]
        elif action == 3:
            whole[start:start] = whole[start:stop]
        elif action == 4:
            whole[start:stop] = random.randbytes(stop - start)
        elif action == 5:
            other = random.randrange(len(whole) + 1)
            whole[start:stop] = whole[other : other + stop - start]
        elif random.randrange(8) == 0:
            del whole[start:]
        else:
            whole[start:start] = random.choice(_TEXTS)
    return bytes(whole)


def mutated_json(text: bytes, random: Random) -> bytes:
    """Return a JSON text with some of its values or keys changed, or no JSON."""
    if random.randrange(3) == 0:
        return mutated_bytes(text, random)
    root = [json.loads(text)]
    for _ in range(random.choice((1, 1, 2, 3))):
        holder, key = _place(root, random)
        action = random.randrange(4)
        if action == 0 and holder is not root:
            del holder[key]
        elif action == 1 and isinstance(holder, dict):
            holder[random.choice((*_NAMES, *holder))] = holder.pop(key)
        elif action == 2:
            other, at = _place(root, random)
            holder[key] = json.loads(json.dumps(other[at]))
        else:
            holder[key] = copy.deepcopy(random.choice(_VALUES))
    return json.dumps(root[0]).encode()


def _place(root: list[Any], random: Random) -> tuple[Any, Any]:
    """Return what holds some value of a tree, and under which key; any depth."""
    holder: Any = root
    while True:
        key = random.choice(
            list(holder if isinstance(holder, dict) else range(len(holder)))
        )
        value = holder[key]
        deeper = isinstance(value, dict | list) and len(value) > 0
        if not deeper or (holder is not root and random.randrange(4) == 0):
            return holder, key
        holder = value


@functools.cache
def _plain_member(name: str, content: bytes) -> bytes:
    return _member(name, content)


def _member(name: str, content: bytes, **fields: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    head = info.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")
    return head + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def _packed(parts: list[bytes]) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(b"".join([*parts, _END]))


def _whole(seed: Seed, changes: Mapping[str, bytes]) -> bytes:
    return _packed(
        [
            _member(name, changes[name]) if name in changes else plain
            for (name, _), plain in zip(seed.members, _parts(seed), strict=True)
        ]
    )


def _parts(seed: Seed) -> list[bytes]:
    return [_plain_member(name, text) for name, text in seed.members]


def _of_archive(seed: Seed, random: Random) -> bytes:
    return mutated_bytes(seed.packed, random)


def _of_members(seed: Seed, random: Random) -> bytes:
    plain = b"".join(_parts(seed)) + _END
    return zstandard.ZstdCompressor(level=1).compress(mutated_bytes(plain, random))


def _of_headers(seed: Seed, random: Random) -> bytes:
    parts = _parts(seed)
    for _ in range(random.choice((1, 1, 2))):
        at = random.randrange(len(seed.members))
        name, text = seed.members[at]
        action = random.randrange(7)
        if action == 0:
            parts[at] = b""
        elif action == 1:
            parts.insert(random.randrange(len(parts) + 1), _member(name, text))
        elif action == 2:
            other = random.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        elif action == 3:
            parts[at] = _member(random.choice(_NAMES), text)
        elif action == 4:
            kind = random.choice(_KINDS)
            parts[at] = _member(name, text, type=kind, linkname=random.choice(_NAMES))
        elif action == 5:
            parts[at] = _member(name, text, size=random.choice(_SIZES))
        else:
            parts[at] = _member(name, mutated_bytes(text, random))
    return _packed(parts)


def _of_manifest(seed: Seed, random: Random) -> bytes:
    members = dict(seed.members)
    members.pop(SIGNATURE, None)
    text = mutated_json(members.pop(MANIFEST), random)
    plain = (_plain_member(name, content) for name, content in members.items())
    return _packed([_member(MANIFEST, text), *plain])


def _of_envelope(seed: Seed, random: Random) -> bytes:
    heads = dict(seed.members)
    if SIGNATURE not in heads:
        return _of_headers(seed, random)
    text = heads[SIGNATURE]
    if random.randrange(3) == 0:
        row = json.loads(text)
        payload = base64.b64decode(row["payload"])
        payload = mutated_json(payload, random)
        row["payload"] = base64.b64encode(payload).decode()
        return _whole(seed, {SIGNATURE: json.dumps(row).encode()})
    return _whole(seed, {SIGNATURE: mutated_json(text, random)})


def _of_paths(seed: Seed, random: Random) -> bytes:
    """Return a bundle that agrees with itself, and whose maker means harm."""
    members = dict(seed.members)
    manifest = json.loads(members.pop(MANIFEST))
    members.pop(SIGNATURE, None)
    for _ in range(random.choice((1, 1, 2))):
        old = random.choice(list(members))
        parts = [*_NAMES, *members, f"{old}/x", f"/{old}", f"../{old}", f"{old}\0"]
        new = random.choice(parts)
        text = members.pop(old)
        manifest["files"].pop(old)
        members[new] = text
        digest = hashlib.sha256(text).hexdigest()
        manifest["files"][new] = {"sha256": digest, "size": len(text)}
    parts = [_member(MANIFEST, json.dumps(manifest).encode())]
    return _packed([*parts, *(_member(name, text) for name, text in members.items())])


LAYERS: Mapping[str, Callable[[Seed, Random], bytes]] = {
    "archive": _of_archive,
    "members": _of_members,
    "headers": _of_headers,
    "manifest": _of_manifest,
    "envelope": _of_envelope,
    "paths": _of_paths,
}
UNSIGNED = frozenset({"manifest", "paths"})
"""Layers whose bundles nobody signed, to be read by whoever trusts everybody."""
