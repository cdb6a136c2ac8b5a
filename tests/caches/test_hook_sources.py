"""Keys of torch's and Triton's sources, kept beside what their files look like."""

import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flytune.caches.hook import flytune_sources as sources

KNOWN = sources.KNOWN_NAME
BOTH = """
import json, sys
import torch
import torch._inductor.codecache as codecache
from flytune.caches.hook import flytune_sources as sources
key = sources.torch_key(codecache, sys.argv[1])
assert codecache.torch_key().hex() == key
undo = sources.keep_triton_key(sys.argv[1])
import triton.runtime.cache as cache
from torch._inductor.runtime import triton_compat
kept = cache.triton_key()
assert triton_compat.triton_key() == kept
undo()
print(json.dumps([key, kept, cache.triton_key()]))
"""


class Asked:
    """A fake of torch's module that says how often its sources were read."""

    def __init__(self, root: Path) -> None:
        self.__file__ = str(root / "_inductor" / "codecache.py")
        self.times = 0

    def torch_key(self) -> bytes:
        self.times += 1
        return self.times.to_bytes(2, "big")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "torch"
    (root / "_inductor").mkdir(parents=True)
    (root / "__init__.py").write_text("a = 1\n")
    (root / "_inductor" / "codecache.py").write_text("b = 2\n")
    # The key is of the imported torch, whose version is part of the looks.
    fake = types.SimpleNamespace(__version__="2.15.0")
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]
    return root


def key(directory: Path, asked: Asked) -> str:
    return sources.torch_key(asked, str(directory))


def test_sources_are_read_once(root: Path, tmp_path: Path) -> None:
    asked = Asked(root)
    keys = [key(tmp_path, asked) for _ in range(3)]
    assert (keys, asked.times) == (["0001"] * 3, 1)


def changes(root: Path) -> Iterator[None]:
    (root / "new.py").write_text("")
    yield
    (root / "new.py").write_text("c = 3\n")
    yield
    os.utime(root / "new.py", ns=(1, 1))
    yield
    (root / "new.py").rename(root / "_inductor" / "new.py")
    yield
    (root / "_inductor" / "new.py").unlink()
    yield
    sys.modules["torch"].__version__ = "2.15.1"
    yield


def test_a_link_to_nowhere_is_as_good_a_file_as_any(root: Path, tmp_path: Path) -> None:
    (root / "gone.py").symlink_to(tmp_path / "nowhere.py")
    asked = Asked(root)
    assert key(tmp_path, asked) == key(tmp_path, asked)
    assert asked.times == 1


def test_any_change_is_seen(root: Path, tmp_path: Path) -> None:
    asked = Asked(root)
    key(tmp_path, asked)
    for count, _ in enumerate(changes(root), 2):
        key(tmp_path, asked)
        assert asked.times == count


def test_compiled_python_is_no_source(root: Path, tmp_path: Path) -> None:
    asked = Asked(root)
    key(tmp_path, asked)
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "a.pyc").write_bytes(b"")
    key(tmp_path, asked)
    assert asked.times == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"torch": 1}', '{"torch": ["x"]}'])
def test_a_damaged_file_is_written_anew(root: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / KNOWN).write_text(text)
    asked = Asked(root)
    assert [key(tmp_path, asked) for _ in range(2)] == ["0001"] * 2


def test_no_place_to_keep_it(root: Path, tmp_path: Path) -> None:
    asked = Asked(root)
    assert key(tmp_path / "absent", asked) == "0001"
    assert not list(tmp_path.glob(f"*{KNOWN}*"))


def test_keys_are_those_of_torch_and_triton(tmp_path: Path) -> None:
    rows: list[Any] = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", BOTH, tmp_path],
            capture_output=True,
            text=True,
            check=True,
        )
        rows.append(json.loads(done.stdout))
    (torch_key, kept, own), again = rows
    assert kept == own
    assert again == rows[0]
    stored = json.loads((tmp_path / KNOWN).read_text())
    assert [stored["torch"][1], stored["triton"][1]] == [torch_key, kept]
