"""The check of a real MI350: what can be seen of it where there is none."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from flytune.caches.device_profile import shipped_profiles
from flytune.tuner.cli import main

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "ci" / "mi350.sh"
FACTS = ROOT / "ci" / "mi350_facts.py"


def run(*command: object) -> subprocess.CompletedProcess[str]:
    # Whatever accelerator this host has, it is none for the script.
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **hidden, "PYTHON": sys.executable},
    )


def facts(question: str, path: Path) -> tuple[int, list[str]]:
    done = run(sys.executable, FACTS, question, path)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, list[str]]]:
    done = run(SCRIPT, "--list", tmp_path_factory.mktemp("mi350") / "absent")
    assert (done.returncode, done.stderr) == (0, "")
    lines = (line.partition(": ") for line in done.stdout.splitlines())
    return [(name, command.split()) for name, _, command in lines]


def test_the_script_is_sound() -> None:
    assert run("bash", "-n", SCRIPT).returncode == 0
    if shutil.which("shellcheck"):
        done = run("shellcheck", SCRIPT)
        assert done.returncode == 0, done.stdout


def test_without_the_device_it_ends_at_once(tmp_path: Path) -> None:
    done = run(SCRIPT, tmp_path / "out")
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = done.stdout.splitlines()
    said = (
        r"FAIL device \(\d+ s\): error: no accelerator here, or torch cannot use it; "
    )
    assert re.match(said, line)


def test_its_commands_have_these_options(
    commands: list[tuple[str, list[str]]],
) -> None:
    asked = 0
    for _, words in commands:
        options = {word for word in words if word.startswith("--")}
        if words[0] == "flytune":
            text = CliRunner().invoke(main, [words[1], "--help"]).stdout
        elif words[1].startswith("ci/bench/"):
            text = run(sys.executable, ROOT / words[1], "--help").stdout
        else:
            continue
        assert options <= set(re.findall(r"--[a-z-]+", text)), words
        asked += 1
    assert asked == 6


def test_each_check_is_described(commands: list[tuple[str, list[str]]]) -> None:
    text = (ROOT / "ci" / "README.md").read_text()
    for name, _ in commands:
        assert f"`{name}`" in text.partition("## On a real MI350")[2]


def test_a_device_of_another_kind_is_told() -> None:
    profiles = shipped_profiles()
    assert facts("arch", profiles["mi355x"]) == (0, [])
    assert facts("arch", profiles["h200"]) == (
        1,
        ["error: no MI350 or MI355X: NVIDIA H200 is sm_90, not gfx950"],
    )


def test_each_value_that_differs_is_told(tmp_path: Path) -> None:
    shipped = shipped_profiles()["mi350x"]
    assert facts("profile", shipped) == (0, [])
    row = json.loads(shipped.read_text())
    row["properties"]["L2_cache_size"] = 1
    row["captured_with"]["hip"] = "7.3"
    captured = tmp_path / "profile.json"
    captured.write_text(json.dumps(row))
    code, lines = facts("profile", captured)
    assert code == 1
    assert [re.split(": |, here", line)[1::2] for line in lines] == [
        ["L2_cache_size", " 1"],
        ["hip", " 7.3"],
    ]
    row["properties"]["name"] = "AMD Radeon Graphics"
    captured.write_text(json.dumps(row))
    _, lines = facts("profile", captured)
    assert lines[0] == "error: no shipped profile is of this name: AMD Radeon Graphics"


def test_a_bundle_of_other_backends_is_told(unfrozen_bundle: Path) -> None:
    assert facts("program", unfrozen_bundle) == (
        1,
        [
            "error: no candidate of this backend was timed: triton",
            "error: no candidate of this backend was timed: flydsl",
        ],
    )
