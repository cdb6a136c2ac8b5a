import os
import shutil
import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from flytune.shapes.registry import SHIPPED, UnknownModelError, find_model


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("Llama-3.3-70B", "Llama-3.3-70B-Instruct"),
        ("llama-3.3-70b", "Llama-3.3-70B-Instruct"),
        ("LLAMA-3.3-70B-INSTRUCT", "Llama-3.3-70B-Instruct"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.3-70B-Instruct"),
        ("Llama-3.1-8B", "Llama-3.1-8B-Instruct"),
        ("qwen3-32b", "Qwen3-32B"),
        ("qwen/qwen3-4b", "Qwen3-4B"),
    ],
)
def test_short_and_full_names_in_any_case(name: str, full: str) -> None:
    assert find_model(name).name == full


def test_every_shipped_file_has_a_name() -> None:
    folder = files("flytune.shapes") / "models"
    assert {f"{model.name}.json" for model in SHIPPED} == {
        file.name for file in folder.iterdir()
    }


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Llama-3.3-70", "`Llama-3.3-70B`"),
        ("Llama-3.1-70B", "`Llama-3.1-8B`"),
        ("Qwen3-3B", "`Qwen3-4B`"),
        ("qwen-32b", "`Qwen3-32B`"),
    ],
)
def test_a_near_name_is_offered_never_taken(name: str, near: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        find_model(name)
    assert str(caught.value) == f"no config for model: `{name}`"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("did you mean ")
    assert near in caught.value.hint


@pytest.mark.parametrize("name", ["gpt2", "", " ", "\0", "x" * 5000, "a b/c"])
def test_a_far_name_lists_what_is_shipped(name: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        find_model(name)
    assert caught.value.hint is not None
    assert "Llama-3.1-8B, Llama-3.3-70B, Qwen3-32B, Qwen3-4B" in caught.value.hint


def test_a_file_a_folder_and_any_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    with as_file(files("flytune.shapes") / "models" / "Qwen3-4B.json") as config:
        shutil.copy(config, folder / "config.json")
        shutil.copy(config, tmp_path / "other.json")
    for path in (folder, folder / "config.json"):
        assert find_model(str(path)).name == "my-model"
    assert find_model(str(tmp_path / "other.json")).name == "other"
    monkeypatch.chdir(folder)
    for name in (".", "./config.json", "config.json"):
        assert find_model(name).name == "my-model"


def test_a_folder_hides_no_shipped_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen3-4B").mkdir()
    assert find_model("Qwen3-4B").source == "shipped Qwen3-4B"
    with pytest.raises(UnknownModelError, match=r"no config\.json in folder"):
        find_model("./Qwen3-4B")


@pytest.mark.parametrize("name", ["/no/such", "./no", "~nobody/x", "a/b.json", "a/b/c"])
def test_an_absent_path_is_no_hub_id(name: str) -> None:
    with pytest.raises(UnknownModelError, match="no such config file or folder"):
        find_model(name)


def test_the_hub_answers_is_absent_or_gated(tmp_path: Path) -> None:
    config = (files("flytune.shapes") / "models" / "Qwen3-4B.json").read_bytes()
    environment = os.environ | {"HF_HOME": str(tmp_path), "no_proxy": "127.0.0.1"}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("hub_asker.py"))],
        input=config,
        capture_output=True,
        check=True,
        env=environment,
        timeout=60,
    )
    lines = done.stdout.decode().splitlines()
    expected = (
        "open/model model",
        "no/model no config for model: `no/model`",
        "bare/model no config.json on the hub for: `bare/model`",
        "gated/model the hub keeps this model gated: `gated/model`",
        "sick/model cannot reach the Hugging Face hub for model: `sick/model`",
        "modelopt/model model hf_quant_config.json",
        "open/model model",
        "meta-llama/Llama-3.1-8B cannot reach the Hugging Face hub for model",
    )
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)
    assert "did you mean `Llama-3.1-8B`" in lines[-1]
    assert b"Retrying" not in done.stderr


def test_an_offline_hub_is_one_clear_line(tmp_path: Path) -> None:
    code = "from flytune.shapes.registry import find_model; find_model('some/model')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        text=True,
        timeout=60,
    )
    last = done.stderr.splitlines()[-1]
    assert last.endswith("cannot reach the Hugging Face hub for model: `some/model`")
