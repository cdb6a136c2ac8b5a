import itertools
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flytune.tuner.cli import COMMANDS, EXTRA_OF, Commands, LazyCommand, main

ROOT = Path(__file__).parents[2]

# Writes far more than a pipe holds.
COUNT = """
import click
from flytune.tuner.cli import Commands

@click.command()
def count():
    for number in range(100_000):
        click.echo(number)

Commands(commands=[count])()
"""
NO_SPACE = "No space left on device"


def run_command(body: str, folder: Path, *arguments: str) -> Result:
    """Run `flytune build`, where build is a command that does `body`."""
    (folder / "made_command.py").write_text(
        "import click\n"
        "from flytune.shapes.errors import FlytuneError\n"
        "@click.command()\n"
        "def command() -> None:\n"
        f"    {body}\n"
    )
    build = LazyCommand("build", "made_command:command", "Made for a test.")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "made_command", raising=False)
        return CliRunner().invoke(Commands(commands=[build]), ["build", *arguments])


def test_help_lists_the_commands_in_order_and_imports_none() -> None:
    group = Commands(commands=[LazyCommand(n, "nowhere:x", h) for n, _, h in COMMANDS])
    result = CliRunner().invoke(group, ["--help"])
    assert result.exit_code == 0
    lines = result.stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == [name for name, _, _ in COMMANDS]
    assert lines[0].split(maxsplit=1) == ["shapes", "List the GEMMs that a model runs."]


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_each_command_is_where_the_table_says(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"Usage: main {name} ")


def test_version_is_the_wheels() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"flytune {version('flytune')}\n")


def test_every_package_of_an_extra_has_its_extra() -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    order = ("amd", "build", "cluster", "ship")
    assert sorted(order) == sorted(extras)
    named = {name: extra for extra in order for name in names(extras[extra])}
    # Imported by another name than it is installed.
    named["grpc"] = named.pop("grpcio")
    named["pynvml"] = named.pop("nvidia-ml-py")
    named["sklearn"] = named.pop("scikit-learn")
    assert named == EXTRA_OF


def test_every_requirement_is_pinned_for_development() -> None:
    project = pyproject()["project"]
    wanted = [*project["dependencies"], *pyproject()["dependency-groups"]["dev"]]
    wanted += itertools.chain(*project["optional-dependencies"].values())
    lines = (ROOT / "ci" / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all("==" in pin for pin in pins)
    assert sorted(names(pins)) == sorted(set(names(wanted)))


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def names(requirements: list[str]) -> list[str]:
    return [re.split(r"[^\w-]", requirement)[0] for requirement in requirements]


def test_a_fault_is_an_error_line_and_a_hint(tmp_path: Path) -> None:
    result = run_command("raise FlytuneError('no x: `1`', hint='use `2`')", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == "error: no x: `1`\nhint: use `2`\n"
    assert result.stdout == ""


def test_a_fault_with_a_code_says_what_to_do(tmp_path: Path) -> None:
    result = run_command("raise FlytuneError('no x: `1`', code='FT201')", tmp_path)
    assert result.stderr == (
        "error: no x: `1` (FT201)\nhint: check its path and its mode\n"
    )


def test_a_fault_without_a_hint_is_one_line(tmp_path: Path) -> None:
    result = run_command("raise FlytuneError('no x: `1`')", tmp_path)
    assert (result.exit_code, result.stderr) == (1, "error: no x: `1`\n")


@pytest.mark.parametrize(
    ("package", "extra"),
    [("ray.util", "build"), ("grpc", "cluster"), ("flydsl.expr", "amd")],
)
def test_an_absent_extra_is_named(
    package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Python itself refuses to import is a module that is None here.
    monkeypatch.setitem(sys.modules, package.partition(".")[0], None)
    result = run_command(f"import {package}", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: flytune build needs {package.partition('.')[0]}, "
        "which is not installed\n"
        f"hint: pip install 'flytune[{extra}]'\n"
    )


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("import no_such_module_at_all", ModuleNotFoundError),
        ("from click import no_such_name", ImportError),
        ("raise ValueError('a bug')", ValueError),
    ],
)
def test_a_bug_keeps_its_traceback(
    body: str, kind: type[Exception], tmp_path: Path
) -> None:
    result = run_command(body, tmp_path)
    assert type(result.exception) is kind
    assert result.stderr == ""


def test_wrong_usage_is_clicks_own(tmp_path: Path) -> None:
    result = run_command("pass", tmp_path, "--no-such-option")
    assert result.exit_code == 2
    assert "No such option" in result.stderr
    result = CliRunner().invoke(main, ["no-such-command"])
    assert result.exit_code == 2
    assert "No such command" in result.stderr


def test_an_exit_code_of_a_commands_own_is_kept(tmp_path: Path) -> None:
    result = run_command("click.get_current_context().exit(3)", tmp_path)
    assert result.exit_code == 3


def test_an_interrupt_is_one_line(tmp_path: Path) -> None:
    result = run_command("raise KeyboardInterrupt", tmp_path)
    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (f"raise OSError(28, '{NO_SPACE}', 'a/b')", "a/b: "),
        (f"import shutil; raise shutil.Error([('a', 'b', '{NO_SPACE}')])", ""),
    ],
)
def test_a_full_disk_is_one_line(body: str, line: str, tmp_path: Path) -> None:
    result = run_command(body, tmp_path)
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: cannot write: {line}{NO_SPACE}\n"
        "hint: free some, or move it: --work, --out, TMPDIR\n"
    )


def test_another_error_of_a_file_keeps_its_traceback(tmp_path: Path) -> None:
    result = run_command("open('no/such/file')", tmp_path)
    assert type(result.exception) is FileNotFoundError


def test_a_reader_that_leaves_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", COUNT, "count"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
