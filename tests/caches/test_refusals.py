"""A bundle that is refused, for each reason: a line with its code, and serving goes on.

Archives that break a rule have tests of their own, `test_bundle.py`.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundles import FILES, POLICY, elsewhere, installable, mounted, python
from click.testing import CliRunner

from flytune.caches.install import attempt
from flytune.shapes.errors import FlytuneError
from flytune.tuner.cli import main

ENTRY = {"sha256": "0" * 64, "size": 1}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FLYTUNE_DISABLE", raising=False)


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A directory whose manifest was changed."""
    path = installable(folder, "b") / "manifest.json"
    row = json.loads(path.read_bytes())
    change(row)
    path.write_text(json.dumps(row))
    return path.parent


def listing(name: str) -> Callable[[Path], Path]:
    return lambda folder: rewritten(
        folder, lambda row: row["files"].update({name: ENTRY})
    )


CASES: dict[str, Callable[[Path], Path]] = {
    "FT101": lambda folder: installable(folder, target=elsewhere()),
    "FT103": lambda folder: installable(
        folder, bake={"passes": [], "settled": False, "remaining": {}}
    ),
    "FT104": lambda folder: installable(folder, software="stand-in"),
    "FT201": lambda folder: folder / "none",
    "FT202": lambda folder: rewritten(folder, lambda row: row.pop("model")),
    "FT203": lambda folder: rewritten(folder, lambda row: row.update(schema=99)),
    "FT218": listing("/etc/passwd"),
    "FT219": listing("inductor/../../x"),
    "FT220": listing("inductor\\x"),
    "FT221": lambda folder: installable(folder, policy={**POLICY, "env": {"A": 1}}),
}


@pytest.mark.parametrize("code", CASES)
def test_a_bundle_that_is_refused(
    tmp_path: Path, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = CASES[code](tmp_path)
    installed = attempt(bundle)
    assert (installed.code, installed.directory) == (code, None)
    assert installed.status == ("miss" if code[2] == "1" else "error")
    said = capsys.readouterr().err
    assert said == f"flytune: bundle not used: {installed.reason} ({code})\n"
    assert not (tmp_path / "home" / "installed").exists()
    with pytest.raises(FlytuneError) as caught:
        attempt(bundle, strict=True)
    assert caught.value.code == code
    result = CliRunner().invoke(main, ["install", str(bundle)])
    assert (result.exit_code, result.stdout) == (1, "")
    first = result.stderr.splitlines()[0]
    assert first.startswith("error: ")
    assert first.endswith(f" ({code})")


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    assert attempt(installable(tmp_path), tmp_path).code == "FT303"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=64k,mode=700") as disk:
        yield disk


def test_a_disk_that_is_full(
    tmp_path: Path, full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(full_disk))
    bundle = installable(tmp_path, files={**FILES, "inductor/x": bytes(99_000)})
    assert attempt(bundle).code == "FT301"
    assert list((full_disk / "installed").glob(".*flytune-*")) == []


def test_a_fault_of_our_own_never_stops_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(sys.modules["flytune.caches.prepare"], "place", broken)
    assert attempt(installable(tmp_path)).code == "FT901"
    assert capsys.readouterr().err == (
        "flytune: bundle not used: RuntimeError: unforeseen (FT901)\n"
    )
    with pytest.raises(RuntimeError):
        attempt(installable(tmp_path, "c.tar.zst"), strict=True)


def test_what_is_mended_is_counted(tmp_path: Path) -> None:
    bundle = installable(tmp_path)
    placed = attempt(bundle).directory
    assert placed is not None
    (placed / "inductor/fxgraph/ab/fabc/0123").unlink()
    code = "import flytune.caches, sys; flytune.caches.install(sys.argv[1])"
    done = python(code, bundle)
    assert done.stderr.endswith("inductor/fxgraph/ab/fabc/0123 (FT401)\n")
    (row,) = rows(tmp_path)
    assert (row["state"], row["files"]) == ("hit", {"mended": 1})
    assert row["errors"] == {"FT401": 1}


def rows(tmp_path: Path) -> list[dict[str, Any]]:
    paths = (tmp_path / "home" / "status").glob("*.json")
    return [json.loads(path.read_bytes()) for path in paths]


@pytest.mark.parametrize("strict", [False, True])
def test_a_process_that_is_to_do_without(tmp_path: Path, strict: bool) -> None:
    code = (
        "import flytune.caches, os, sys; before = dict(os.environ)\n"
        f"done = flytune.caches.install(sys.argv[1], strict={strict})\n"
        "print(done.status, done.code, dict(os.environ) == before)"
    )
    done = python(code, installable(tmp_path), FLYTUNE_DISABLE="1")
    assert done.stdout == "disabled FT501 True\n"
    assert done.stderr == "flytune: bundle not used: FLYTUNE_DISABLE is set (FT501)\n"
    (row,) = rows(tmp_path)
    assert (row["state"], row["code"]) == ("disabled", "FT501")
    assert not (tmp_path / "home" / "installed").exists()
    on = python(code, tmp_path / "b.tar.zst", FLYTUNE_DISABLE="0")
    assert on.stdout.startswith("hit None")


def test_commands_that_are_to_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = installable(tmp_path)
    environment = json.loads(
        CliRunner().invoke(main, ["install", str(bundle), "--json"]).stdout
    )["environment"]
    monkeypatch.setenv("FLYTUNE_DISABLE", "1")
    result = CliRunner().invoke(main, ["install", str(bundle)])
    assert (result.exit_code, result.stdout) == (0, "")
    run = "from flytune.tuner.cli import main; main()"
    show = "import os; print(os.environ.get('TORCHINDUCTOR_CACHE_DIR'))"
    done = python(run, "exec", "--strict", bundle, "--", sys.executable, "-c", show)
    said = "flytune: bundle not used: FLYTUNE_DISABLE is set (FT501)\n"
    assert (done.stdout, done.stderr) == ("None\n", said)
    # What a shell has set already is set back, before torch is imported.
    child = python(show, **environment)
    assert (child.stdout, child.stderr) == ("None\n", said)
    assert {row["code"] for row in rows(tmp_path)} == {"FT501"}


def test_a_command_runs_without_a_bundle_that_is_corrupt(tmp_path: Path) -> None:
    bundle = installable(tmp_path)
    bundle.write_bytes(bundle.read_bytes()[:-5])
    run = "from flytune.tuner.cli import main; main()"
    show = "import os; print(os.getpid(), os.environ.get('TORCHINDUCTOR_CACHE_DIR'))"
    done = python(run, "exec", bundle, "--", sys.executable, "-c", show)
    pid, cache_dir = done.stdout.split()
    assert cache_dir == "None"
    assert done.stderr.endswith("(FT205)\n")
    # The command is the very process that looked at the bundle.
    (row,) = rows(tmp_path)
    assert (row["pid"], row["state"], row["code"]) == (int(pid), "error", "FT205")
    strict = subprocess.run(
        [sys.executable, "-c", run, "exec", "--strict", str(bundle), "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert strict.returncode == 1
    assert strict.stderr.startswith("error: archive is truncated")
