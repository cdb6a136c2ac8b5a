"""Mutated archives: a clear error or the very files, and nothing half done."""

import tempfile
from pathlib import Path

import zstandard
from bundles import FILES, archive, tar, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from flytune.caches.bundle import Bundle
from flytune.shapes.errors import FlytuneError

PLAIN = tar(FILES) + bytes(1024)
PACKED = zstandard.ZstdCompressor().compress(PLAIN)


@st.composite
def mutations(draw: st.DrawFn, content: bytes) -> bytes:
    whole = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(whole)))
        stop = draw(st.integers(start, min(len(whole), start + 600)))
        action = draw(st.sampled_from(["flip", "cut", "repeat", "insert", "end"]))
        if action == "flip" and start < len(whole):
            whole[start] ^= draw(st.integers(1, 255))
        elif action == "cut":
            del whole[start:stop]
        elif action == "repeat":
            whole[start:start] = whole[start:stop]
        elif action == "insert":
            whole[start:start] = draw(st.binary(max_size=64))
        elif action == "end":
            del whole[start:]
    return bytes(whole)


def place(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "b.tar.zst")
        path.write_bytes(content)
        into = Path(name, "into")
        try:
            Bundle.open(path).place(into)
        except FlytuneError:
            assert [p.name for p in Path(name).iterdir()] == ["b.tar.zst"]
        else:
            assert tree(into) == FILES


@settings(max_examples=300, deadline=None)
@given(mutations(PACKED))
def test_mutated_compressed_bytes(content: bytes) -> None:
    place(content)


@settings(max_examples=300, deadline=None)
@given(mutations(PLAIN))
def test_mutated_members(content: bytes) -> None:
    place(zstandard.ZstdCompressor().compress(content))


def test_the_unmutated_archive_is_placed(tmp_path: Path) -> None:
    Bundle.open(archive(tmp_path, tar(FILES))).place(tmp_path / "into")
    assert tree(tmp_path / "into") == FILES
