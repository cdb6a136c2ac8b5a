"""`flytune installed` and `flytune gc`, and serving by digest from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bundles import installable
from click.testing import CliRunner, Result

from flytune.caches.bundle import Bundle
from flytune.tuner.cli import main

MAIN = "from flytune.tuner.cli import main; main()"


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a bundle that is installed by a process that ended, its archive gone."""
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    bundle = installable(tmp_path)
    command = [sys.executable, "-c", MAIN, "install", str(bundle)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    digest = Bundle.open(bundle).digest
    bundle.unlink()
    return digest


def flytune(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result


def test_installed_in_words_and_as_json(digest: str) -> None:
    line = flytune("installed").stdout
    assert line.startswith(f"sha256:{digest[:16]}  20")
    assert "MB  tiny  cpu-" in line
    row = json.loads(flytune("installed", "--json").stdout)
    assert (row["digest"], row["model"], row["in_use"]) == (digest, "tiny", False)
    assert row["used"].endswith("+00:00")


def test_gc_in_words_and_as_json(digest: str) -> None:
    assert flytune("gc").stdout == ""
    would = flytune("gc", "--keep", "0", "--dry-run").stdout
    assert would.startswith(f"would remove sha256:{digest[:16]}  ")
    row = json.loads(flytune("gc", "--keep", "0", "--json").stdout)
    assert [one["digest"] for one in row["removed"]] == [digest]
    assert row["dry_run"] is False
    assert flytune("installed").stdout == ""


def test_a_command_runs_with_an_earlier_bundle(digest: str) -> None:
    show = "import os; print(os.environ['FLYTUNE_INSTALLED'])"
    command = ["exec", f"sha256:{digest[:8]}", "--", sys.executable, "-c", show]
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *command],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.strip()[-16:], done.stderr) == (digest[:16], "")
    shell = flytune("install", f"sha256:{digest}").stdout
    assert f"export FLYTUNE_INSTALLED={done.stdout.strip()}" in shell.splitlines()


def test_keep_is_a_number_from_zero_up() -> None:
    assert CliRunner().invoke(main, ["gc", "--keep", "-1"]).exit_code == 2
