import json
import sys
import venv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from flytune.caches.device_profile import find_profile
from flytune.caches.host import Part
from flytune.caches.target_env import check_target_env
from flytune.shapes.errors import FlytuneError

CAPTURED = find_profile("h200").captured_with
PARTS = ("python_abi", "torch", "torch_key", "triton", "triton_key")


def captured(folder: Path, software: Mapping[str, str]) -> Path:
    """A profile's file, as `flytune doctor --profile` writes it."""
    path = folder / "profile.json"
    row = replace(find_profile("h200"), captured_with=software).to_json()
    path.write_text(json.dumps(row))
    return path


def environment(folder: Path, script: str) -> Path:
    """An environment whose Python is a shell script."""
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return folder / "env"


def refusal(environment: Path, software: dict[str, Part]) -> FlytuneError:
    with pytest.raises(FlytuneError) as caught:
        check_target_env(environment, software)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_capture_of_the_same_software_is_no_difference(tmp_path: Path) -> None:
    software = {**CAPTURED, "driver": "580.95"}
    check_target_env(captured(tmp_path, CAPTURED), software)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_differs_is_named_with_both_values(
    tmp_path: Path, part: str
) -> None:
    there = captured(tmp_path, {**CAPTURED, part: "theirs"})
    error = refusal(there, dict(CAPTURED))
    assert str(error) == (
        f"the serving environment differs: software.{part}: `theirs` there, "
        f"`{CAPTURED[part]}` here"
    )
    assert error.hint == "run flytune in an environment with the same wheels and Python"


def test_this_environment_answers_and_another_part_is_found(tmp_path: Path) -> None:
    # What cannot be equal by chance: the keys of torch's and Triton's own files.
    here = Path(sys.prefix)
    software: dict[str, Part] = {"python_abi": "cpython-39", "torch_key": "00"}
    error = refusal(here, software)
    assert "software.python_abi: `cpython-3" in str(error)
    assert str(error).endswith(" there, `cpython-39` here")


def test_an_answer_that_is_no_object(tmp_path: Path) -> None:
    made = environment(tmp_path, "echo '[]'")
    assert "does not tell its python_abi" in str(refusal(made, {}))


def test_an_environment_without_torch(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    error = refusal(tmp_path / "env", {})
    assert str(error) == (
        f"the serving environment cannot be asked: {tmp_path}/env/bin/python: "
        "ModuleNotFoundError: No module named 'torch'"
    )
    assert error.hint == "give the folder of a virtual environment that holds torch"


def test_a_folder_that_is_no_environment(tmp_path: Path) -> None:
    assert str(refusal(tmp_path, {})) == (
        f"the serving environment cannot be asked: {tmp_path}/bin/python: "
        "No such file or directory"
    )


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 0", "its answer is none"),
        ("exit 3", "its answer is none"),
        ("echo '{'", "its answer is none"),
        ("echo two >&2; echo lines >&2; exit 1", "lines"),
    ],
)
def test_a_python_that_does_not_answer(
    tmp_path: Path, script: str, reason: str
) -> None:
    error = refusal(environment(tmp_path, script), {})
    assert str(error).endswith(f"/env/bin/python: {reason}")


def test_what_else_a_python_prints_is_passed_over(tmp_path: Path) -> None:
    script = f"echo hello; echo '{json.dumps(dict(CAPTURED))}'"
    check_target_env(environment(tmp_path, script), dict(CAPTURED))


@pytest.mark.parametrize("part", ["python_abi", "torch", "torch_key", "triton_key"])
def test_a_part_that_decides_must_be_told(tmp_path: Path, part: str) -> None:
    told = {name: value for name, value in CAPTURED.items() if name != part}
    path = captured(tmp_path, told)
    assert str(refusal(path, dict(CAPTURED))) == (
        f"the serving environment does not tell its {part}: {path}"
    )
    made = environment(tmp_path, f"echo '{json.dumps(told)}'")
    assert f"does not tell its {part}: {made}" in str(refusal(made, dict(CAPTURED)))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_a_file_that_is_no_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    assert str(refusal(path, {})) == f"device profile is not JSON: {path}"


def test_a_file_that_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("{}")
    assert str(refusal(path, {})).startswith("device profile is malformed: ")


def test_no_setting_of_torchs_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Serving will not have what this process has set.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "ours")
    made = environment(tmp_path, 'echo "$TORCHINDUCTOR_CACHE_DIR." >&2; exit 1')
    assert str(refusal(made, {})).endswith(": .")
