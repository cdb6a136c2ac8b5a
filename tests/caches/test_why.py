"""What `flytune why` says of processes and of installed directories."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bundles import elsewhere, installable
from click.testing import CliRunner, Result

from flytune.caches.codes import EXPLAINED, Code
from flytune.caches.prepare import prepare
from flytune.tuner.cli import main

SERVE = """
import flytune.caches, os, subprocess, sys
flytune.caches.install(sys.argv[1])
print(os.getpid(), flush=True)
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))


def why(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["why", *map(str, arguments)])


def served(bundle: Path) -> int:
    """The number of a process that installed a bundle and ended."""
    code = "import flytune.caches as c, os, sys; c.install(sys.argv[1]);"
    done = subprocess.run(
        [sys.executable, "-c", code + "print(os.getpid())", str(bundle)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


def row(*arguments: object) -> dict[str, Any]:
    result = why(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    whole: dict[str, Any] = json.loads(result.stdout)
    return whole


def test_a_miss_in_words(tmp_path: Path) -> None:
    pid = served(installable(tmp_path, target=elsewhere()))
    lines = why(pid).stdout.splitlines()
    assert lines[0].startswith(f"process    {pid} on ")
    assert ", ended: " in lines[0]
    assert "state      miss: serves without the bundle, which is for some" in lines[2]
    assert lines[3].startswith("why        hardware.isa: built for `amx_tile`, here `")
    meaning, action = EXPLAINED[Code.HARDWARE]
    assert f"code       FT101: {meaning}" in lines
    assert f"do         {action}" in lines
    assert row(pid)["action"] == action
    (part,) = row(pid)["parts"]
    assert (part["part"], part["built"]) == ("hardware.isa", ["amx_tile"])


def test_a_process_that_runs_and_its_child(tmp_path: Path) -> None:
    bundle = installable(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(bundle)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid, child = (int(process.stdout.readline()) for _ in range(2))
        assert (row(pid)["state"], row(pid)["alive"]) == ("hit", True)
        # Of a child that said nothing, its parent's.
        assert row(child)["pid"] == pid
        listed = why().stdout.split()
        process.stdin.close()
    assert listed[:3] == [str(pid), "running", "hit"]
    assert why().stdout.split()[1] == "ended"


def test_a_process_that_nothing_is_known_of() -> None:
    result = why(os.getpid())
    assert result.exit_code == 1
    first, hint = result.stderr.splitlines()
    assert first == f"error: no bundle was installed for the process: {os.getpid()}"
    assert hint.endswith("home/status")
    assert why().stdout == ""


def test_files_of_others_in_the_folder_are_no_processes(tmp_path: Path) -> None:
    (tmp_path / "home" / "status").mkdir(parents=True)
    for name, text in (("a", "{"), ("b", "[]"), ("c", "{}"), ("d", '{"pid": 1}')):
        (tmp_path / "home" / "status" / f"{name}.json").write_text(text)
    assert (why().stdout, why().exit_code) == ("", 0)


def test_an_installed_directory(tmp_path: Path) -> None:
    bundle = installable(tmp_path)
    directory = prepare(bundle).directory
    assert directory is not None
    assert row(directory)["state"] == "hit"
    assert "bundle     sha256:" in why(directory).stdout
    (directory / "inductor/fxgraph/ab/fabc/0123").write_bytes(b"")
    found = row(directory)
    assert (found["state"], found["code"]) == ("damaged", "FT402")
    assert found["files"] == {"damaged": 1, "set_aside": 0}
    (directory / "installed.json").unlink()
    assert (row(directory)["state"], row(directory)["code"]) == ("error", "FT404")


def test_neither_a_process_nor_a_directory(tmp_path: Path) -> None:
    result = why(tmp_path / "none")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: neither a process nor an installed direc")
    assert "(FT201)" in why(tmp_path).stderr
