import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from small_bundles import bare_manifest

from flytune.caches.keyring import own_key
from flytune.caches.packing import pack
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError
from flytune.tuner.bundle_commands import (
    exec_command,
    inspect_command,
    install_command,
)

EXEC = "from flytune.tuner.bundle_commands import exec_command as e; e()"


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    return make(tmp_path)


def make(folder: Path, name: str = "b.tar.zst", **hardware: Any) -> Path:
    (folder / "staged" / "inductor").mkdir(parents=True, exist_ok=True)
    (folder / "staged" / "inductor" / "graph").write_bytes(b"graph")
    target = Target.here(threads=1).to_json()
    target["hardware"].update(hardware)
    manifest = bare_manifest(
        model={"name": "tiny"},
        policy={"env": {"SERVING": "a b"}, "threads": 1},
        target=target,
        winners=({"op": "mm", "backend": "aten"},) * 14,
    )
    return pack(folder / "staged", manifest, folder / name, keys=[own_key()])


def test_inspect_in_words(bundle: Path) -> None:
    result = CliRunner().invoke(inspect_command, [str(bundle)])
    assert result.exit_code == 0
    assert "timed on  nothing: no list had a choice" in result.stdout
    assert "verified  no" in result.stdout
    assert "and 2 more" in result.stdout
    assert result.stderr == ""


def test_inspect_as_json(bundle: Path) -> None:
    result = CliRunner().invoke(inspect_command, [str(bundle), "--json"])
    row = json.loads(result.stdout)
    assert row["model"] == {"name": "tiny"}
    assert (row["files"], row["size_bytes"], len(row["winners"])) == (1, 5, 14)


def test_inspect_shortens_what_no_one_reads(tmp_path: Path) -> None:
    made = str(make(tmp_path, product="f" * 2000))
    assert (
        f"product {'f' * 128}..." in CliRunner().invoke(inspect_command, [made]).stdout
    )
    whole = CliRunner().invoke(inspect_command, [made, "--json"]).stdout
    assert "f" * 2000 in whole


def test_inspect_of_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(inspect_command, [str(tmp_path / "none")])
    assert isinstance(result.exception, FlytuneError)


def test_install_prints_what_a_shell_sets(bundle: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(install_command, [str(bundle)])
    assert "export SERVING='a b'" in result.stdout.splitlines()
    kernels = [li for li in result.stdout.splitlines() if "TRITON_CACHE_DIR=" in li]
    assert len(kernels) == 1
    # What no variable of torch's can set, the import hook sets in each child.
    hook = [li for li in result.stdout.splitlines() if "FLYTUNE_INSTALLED=" in li]
    assert len(hook) == 1
    assert "/hook" in result.stdout
    into = tmp_path / "into"
    result = CliRunner().invoke(
        install_command, [str(bundle), "--into", str(into), "--json"]
    )
    row = json.loads(result.stdout)
    assert (row["status"], row["directory"]) == ("hit", str(into))
    assert row["environment"]["TORCHINDUCTOR_CACHE_DIR"] == str(into / "inductor")


def test_install_for_another_target(bundle: Path, tmp_path: Path) -> None:
    other = make(tmp_path, "other.tar.zst", isa=["amx_tile"])
    result = CliRunner().invoke(install_command, [str(other)])
    assert isinstance(result.exception, FlytuneError)
    assert "hardware.isa" in str(result.exception)


def exec_it(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", EXEC, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_exec_passes_options_and_the_exit_status(bundle: Path) -> None:
    code = "import os, sys; print(os.environ['SERVING'], sys.argv[1:]); sys.exit(3)"
    done = exec_it(bundle, "--", sys.executable, "-c", code, "--json", "--into", "x")
    assert done.stdout == "a b ['--json', '--into', 'x']\n"
    assert (done.returncode, done.stderr) == (3, "")


def test_strict_exec_lets_flydsl_compile_nothing(bundle: Path) -> None:
    code = "import os; print(os.environ.get('FLYDSL_RUNTIME_RUN_ONLY'))"
    command = ("--", sys.executable, "-c", code)
    assert exec_it("--strict", bundle, *command).stdout == "1\n"
    assert exec_it(bundle, *command).stdout == "None\n"


def test_strict_exec_for_another_target_runs_nothing(tmp_path: Path) -> None:
    other = make(tmp_path, "other.tar.zst", isa=["amx_tile"])
    command = ("--strict", other, "--", sys.executable, "-c", "print(1)")
    done = exec_it(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert "hardware.isa" in done.stderr


def test_exec_of_an_unknown_command(bundle: Path) -> None:
    result = CliRunner().invoke(exec_command, [str(bundle), "--", "no-such-command"])
    assert isinstance(result.exception, FlytuneError)
    assert str(result.exception) == (
        "cannot run: no-such-command: No such file or directory"
    )


def test_exec_without_a_command_is_wrong_usage(bundle: Path) -> None:
    assert exec_it(bundle).returncode == 2


@pytest.mark.parametrize(
    "words", [("--stict", "BUNDLE", "--"), ("BUNDLE", "--stict", "--")]
)
def test_exec_takes_no_unknown_option_for_a_word(
    bundle: Path, words: tuple[str, ...]
) -> None:
    words = tuple(str(bundle) if word == "BUNDLE" else word for word in words)
    done = exec_it(*words, sys.executable, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "Error: No such option '--stict'."


def test_exec_for_another_target_runs_all_the_same(
    bundle: Path, tmp_path: Path
) -> None:
    other = make(tmp_path, "other.tar.zst", isa=["amx_tile"])
    done = exec_it(other, "--", sys.executable, "-c", "print(1)")
    assert done.stdout == "1\n"
    assert done.stderr.startswith("flytune: bundle not used: hardware.isa")
    assert "FLYTUNE_INSTALLED" not in os.environ


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_bundle_that_may_not_be_read_is_a_failure_and_no_wrong_usage() -> None:
    code = """
import os, sys
from flytune.tuner.cli import main
for uid, bundle in ((0, sys.argv[1] + "-none"), (12345, sys.argv[1])):
    os.setuid(uid)
    try:
        main(["inspect", bundle])
    except SystemExit as end:
        print(end.code, flush=True)
"""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        bundle = make(Path(name))
        bundle.chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", code, bundle], capture_output=True, text=True
        )
    assert done.stdout == "1\n1\n", done.stderr
    assert f"cannot read bundle: {bundle}: Permission denied (FT201)" in done.stderr
