"""Folders beside what is written, and what killed processes left there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bundles import manifest, stage

from flytune.caches.bundle import Bundle
from flytune.caches.packing import pack, sign
from flytune.caches.scratch import beside

HOLD = """
import sys
from pathlib import Path
from flytune.caches.scratch import beside
with beside(Path(sys.argv[1])) as folder:
    (folder / "x").touch()
    print("up", flush=True)
    sys.stdin.read()
"""


def test_it_is_private_and_goes(tmp_path: Path) -> None:
    with beside(tmp_path / "b[1]") as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "x").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_and_what_runs_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "b[1]")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        (theirs,) = tmp_path.iterdir()
        with beside(tmp_path / "b[1]"):
            assert (theirs / "x").exists()
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == [theirs]
    with beside(tmp_path / "b[1]") as folder:
        assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("name", ["b", "b.tar.zst"])
def test_a_pack_and_a_signature_clear_what_was_left(tmp_path: Path, name: str) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    staging, out = stage(tmp_path / "staging"), tmp_path / "out" / name
    left = out.parent / f".{name}.flytune-left"
    left.mkdir(parents=True)
    pack(staging, manifest(), out)
    assert os.listdir(out.parent) == [name]
    left.mkdir()
    sign(Bundle.open(out), Ed25519PrivateKey.generate())
    assert os.listdir(out.parent) == [name]
