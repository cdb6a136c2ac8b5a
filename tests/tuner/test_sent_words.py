"""What of a command line goes to a cluster, and what never does."""

import json
import shutil
from pathlib import Path

import pytest
from builds import DATA, LLAMA
from small_bundles import small_bundle

from flytune.caches.bundle import Bundle
from flytune.caches.trust import HERE, UntrustedError
from flytune.shapes.errors import FlytuneError
from flytune.tuner.build_command import build_command
from flytune.tuner.fleet_file import read_fleet
from flytune.tuner.sent_words import Luggage, build_digest


def sent(folder: Path, **given: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options there, and the files that go there, by name and content."""
    luggage, there = Luggage(HERE), folder / "there"
    names = {k.replace("_", "-"): v for k, v in given.items()}
    words = luggage.words({name: (f"--{name}", v) for name, v in names.items()})
    luggage.pack(there)
    files = {
        str(path.relative_to(there)): path.read_text(errors="replace")
        for path in there.rglob("*")
        if path.is_file()
    }
    return {name: some[1] for name, some in words.items()}, files


def test_names_and_numbers_go_as_they_are(tmp_path: Path) -> None:
    given = {"model": "Qwen3-4B", "tokens": "1,8", "target": "H200", "work": "/scratch"}
    assert sent(tmp_path, **given) == (given, {})


def test_no_key_and_no_place_at_home_goes(tmp_path: Path) -> None:
    key = tmp_path / "team.key"
    key.write_text("PRIVATE")
    given = {"key": str(key), "trust": str(key), "out": "b.tar.zst", "ray": "ray://h:1"}
    assert sent(tmp_path, model="Qwen3-4B", **given) == ({"model": "Qwen3-4B"}, {})


def test_a_config_goes_with_its_sidecar_and_without_weights(tmp_path: Path) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    shutil.copy(LLAMA, folder / "config.json")
    (folder / "hf_quant_config.json").write_text("{}")
    (folder / "model.safetensors").write_text("weights")
    files = {
        "files/0/My-Llama/config.json": LLAMA.read_text(),
        "files/0/My-Llama/hf_quant_config.json": "{}",
    }
    words = {"model": "../files/0/My-Llama"}
    assert sent(tmp_path / "a", model=str(folder)) == (words, files)
    words = {"model": "../files/0/My-Llama/config.json"}
    assert sent(tmp_path / "b", model=str(folder / "config.json")) == (words, files)


def test_files_that_options_name_go_too(tmp_path: Path) -> None:
    profile = tmp_path / "h200.json"
    profile.write_text("{}")
    times = DATA / "recorded"
    table = next(path for path in sorted(times.iterdir()) if path.is_file())
    words, files = sent(
        tmp_path,
        model=str(LLAMA),
        target=str(profile),
        target_env=str(profile),
        runner=f"recorded:{table}",
    )
    assert words == {
        "model": f"../files/0/{LLAMA.name}",
        "target": "../files/1/h200.json",
        "target-env": "../files/1/h200.json",
        "runner": f"recorded:../files/2/{table.name}",
    }
    assert sorted(files) == [
        f"files/0/{LLAMA.name}",
        "files/1/h200.json",
        f"files/2/{table.name}",
    ]


def test_an_older_bundle_goes_if_it_is_trusted_and_as_that_very_one(
    tmp_path: Path,
) -> None:
    bundle = small_bundle(tmp_path)
    digest = Bundle.open(bundle).digest
    words, files = sent(tmp_path, **{"from": str(bundle)})
    assert words == {"from": f"../files/0/b.tar.zst@sha256:{digest}"}
    assert list(files) == ["files/0/b.tar.zst"]
    (tmp_path / "other").mkdir()
    unsigned = small_bundle(tmp_path / "other", signed=False)
    with pytest.raises(UntrustedError):
        sent(tmp_path, **{"from": str(unsigned)})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"shapes": "absent.csv"}, "no such file: absent.csv"),
        ({"target_env": "."}, "an environment of this host is not on the cluster: ."),
        ({"work": "work"}, "--work is a folder of the cluster's: work"),
    ],
)
def test_what_cannot_go_is_refused(
    given: dict[str, str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(FlytuneError) as caught:
        sent(tmp_path, **given)
    assert str(caught.value) == says


def test_a_fleet_says_there_what_it_says_here(tmp_path: Path) -> None:
    path, there = tmp_path / "fleet.toml", tmp_path / "there"
    path.write_text(
        f"""
        [defaults]
        tokens = [1, 8]
        threads = 2
        ray = "ray://head:10001"
        key = "team.key"
        [[models]]
        model = "{LLAMA}"
        name = "a"
        tp = 2
        dynamic = true
        exclude = ["x", "y"]
        [[models]]
        bake-cmd = ["python", "say \\"hi\\""]
        """
    )
    file, luggage = read_fleet(path, build_command), Luggage(HERE)
    name = luggage.fleet(file, build_command, 0)
    luggage.pack(there)
    assert name == "../files/fleet-0/fleet.toml"
    again = read_fleet(there / "files" / "fleet-0" / "fleet.toml", build_command)
    home = ("ray", "key")
    assert again.defaults == {k: v for k, v in file.defaults.items() if k not in home}
    model = {"model": ("--model", f"../files/0/{LLAMA.name}")}
    assert again.models[0].words == {**file.models[0].words, **model}
    assert again.models[0].name == "a"
    assert again.models[1].words == file.models[1].words
    path.write_text(f'[[models]]\nmodel = "{LLAMA}"\nout = "b"\n')
    with pytest.raises(FlytuneError, match="`out` is of a build at home"):
        luggage.fleet(read_fleet(path, build_command), build_command, 0)


def test_the_same_words_and_files_are_the_same_build(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"size": 1}))
    first = build_digest(("--model", "a.json"), tmp_path)
    assert build_digest(("--model", "a.json"), tmp_path) == first
    assert build_digest(("--model", "b.json"), tmp_path) != first
    (tmp_path / "a.json").write_text(json.dumps({"size": 2}))
    assert build_digest(("--model", "a.json"), tmp_path) != first
