"""What a command line with `ray://` asks of a cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builds import LLAMA
from click.testing import CliRunner, Result
from small_bundles import bare_manifest

from flytune.caches.device_profile import find_profile
from flytune.caches.packing import pack
from flytune.tuner import remote_command
from flytune.tuner.budget import Meter
from flytune.tuner.cli import main
from flytune.tuner.remote_build import RemoteBuild

RAY = ("--ray", "ray://head:10001")


class Asked:
    """What was asked for, and the files that were to go there."""

    builds: Sequence[RemoteBuild] = ()
    files: dict[str, str]
    keys = 0

    def __call__(
        self,
        builds: Sequence[RemoteBuild],
        address: str,
        sent: Path,
        keys: Any,
        _: Meter,
    ) -> bool:
        self.builds, self.keys = builds, len(keys)
        assert address == RAY[1]
        self.files = {
            str(path.relative_to(sent)): path.read_text()
            for path in sent.rglob("*")
            if path.is_file()
        }
        return True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    made = Asked()
    monkeypatch.setattr(remote_command, "build_remotely", made)
    monkeypatch.chdir(tmp_path)
    return made


def build(*words: object) -> Result:
    return CliRunner().invoke(main, ["build", *map(str, words), *RAY])


def test_one_build_is_its_words_and_is_signed_here(asked: Asked) -> None:
    words = ("--model", LLAMA, "--tokens", "1,8", "--threads", 2, "--tp", 2)
    result = build(*words, "--fresh", "--out", "b.tar.zst")
    assert (result.exit_code, result.output) == (0, "")
    (one,) = asked.builds
    there = f"../files/0/{LLAMA.name}"
    assert set(" ".join(one.request.options).split(" --")) == {
        f"--model {there}",
        "tokens 1,8",
        "threads 2",
        "tp 2",
    }
    assert asked.files == {f"files/0/{LLAMA.name}": LLAMA.read_text()}
    assert (one.request.fresh, one.request.several, one.prefix) == (True, False, "")
    assert (one.wish.device, one.wish.profile, one.wish.runs_nothing) == (
        *("auto", None),
        False,
    )
    assert one.place(Path("made.tar.zst")) == Path("b.tar.zst")
    assert asked.keys == 1
    # Begun afresh, signed otherwise and put elsewhere, it is the same build.
    digest = one.request.digest
    assert build(*words, "--no-sign", "--out", "other").exit_code == 0
    (one,) = asked.builds
    assert (one.request.digest, asked.keys) == (digest, 0)
    assert build(*words, "--ops", "gemm").exit_code == 0
    assert asked.builds[0].request.digest != digest
    assert asked.builds[0].place(Path("made.tar.zst")) == Path("made.tar.zst")


def test_each_target_is_a_build_where_its_device_is(asked: Asked) -> None:
    result = build(
        *("--model", "Qwen3-4B", "--target", "h200", "--target", "mi355x"),
        *("--out", "bundles", "--device", "cuda"),
    )
    assert (result.exit_code, result.output) == (0, "")
    for one, target in zip(asked.builds, ("h200", "mi355x"), strict=True):
        words = one.request.options
        assert words[words.index("--target") + 1] == target
        assert words.count("--target") == 1
        assert one.wish.profile == find_profile(target)
        assert one.prefix == f"{target}: "
        assert one.place(Path("made.tar.zst")) == Path("bundles/made.tar.zst")
    assert Path("bundles").is_dir()
    assert len({one.request.digest for one in asked.builds}) == 2


def test_what_follows_two_dashes_goes_too(asked: Asked) -> None:
    # Behind them nothing is ours: --ray comes before.
    words = ["build", "--engine", "vllm", "--bake", "vllm", *RAY, "--", "some/model"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.output) == (0, "")
    assert asked.builds[0].request.rest == ("--", "some/model")


def test_models_of_a_target_are_built_together(asked: Asked, tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        f"""
        [defaults]
        tokens = 8
        ray = "{RAY[1]}"
        [[models]]
        model = "{LLAMA}"
        target = ["h200", "mi355x"]
        [[models]]
        model = "Qwen3-4B"
        target = "h200"
        """
    )
    words = ["build", "--models", str(path), "--out", "bundles", "--no-sign"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.output) == (0, "")
    h200, mi355x = asked.builds
    assert h200.request.options == ("--models", "../files/fleet-0/fleet.toml")
    assert mi355x.request.options == ("--models", "../files/fleet-1/fleet.toml")
    assert h200.request.several
    assert h200.place(Path()) == Path("bundles")
    assert (h200.prefix, mi355x.prefix) == ("h200: ", "mi355x: ")
    first, second = (asked.files[f"files/fleet-{n}/fleet.toml"] for n in (0, 1))
    assert first.count("[[models]]") == 2
    assert first.count('target = ["h200"]') == 2
    assert second.count("[[models]]") == 1
    assert 'target = ["mi355x"]' in second
    assert "ray://" not in first + second
    assert asked.files[f"files/0/{LLAMA.name}"] == LLAMA.read_text()


@pytest.mark.parametrize("budget", ["4gpu-h", "$20"])
def test_no_budget_of_gpus_is_spent_by_each_of_several_builds(
    asked: Asked, budget: str
) -> None:
    words = ("--model", "Qwen3-4B", "--gpu-hour-price", 4.5, "--target", "h200")
    said = f"error: a budget of GPUs for several builds on a cluster: {budget}\n"
    result = build(*words, "--target", "mi355x", "--budget", budget)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(said)
    Path("f.toml").write_text(
        f'[defaults]\nbudget = "{budget}"\ngpu-hour-price = 4.5\n'
        '[[models]]\nmodel = "Qwen3-4B"\ntarget = ["h200", "mi355x"]\n'
    )
    assert build("--models", "f.toml", "--out", "all").stderr.startswith(said)
    assert asked.builds == ()
    assert build(*words, "--budget", budget).exit_code == 0
    assert build(*words, "--target", "mi355x", "--budget", "30m").exit_code == 0
    assert len(asked.builds) == 2


def test_what_is_at_home_already_ends_it_first(asked: Asked) -> None:
    Path("b.tar.zst").touch()
    result = build("--model", "Qwen3-4B", "--out", "b.tar.zst")
    assert result.stderr.startswith("error: output exists: b.tar.zst\n")
    Path("bundles").touch()
    Path("f.toml").write_text('[[models]]\nmodel = "Qwen3-4B"\n')
    result = build("--models", "f.toml", "--out", "bundles")
    assert result.stderr.startswith("error: output exists: bundles\n")
    assert asked.builds == ()


@pytest.mark.parametrize("provenance", [{"build": "a"}, {}])
def test_what_was_cut_short_may_go_on(
    asked: Asked, provenance: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "staged" / "inductor").mkdir(parents=True)
    (tmp_path / "staged" / "inductor" / "graph").touch()
    for name, coverage in (("short", {"over_budget": ["bmm"]}), ("whole-h200", {})):
        manifest = bare_manifest(coverage=coverage, provenance=provenance)
        pack(tmp_path / "staged", manifest, tmp_path / f"{name}.tar.zst")
    words = ("--model", "Qwen3-4B", "--out")
    targets = ("whole-{target}.tar.zst", "--target", "h200", "--target", "mi355x")
    expected = 0 if provenance else 1
    assert build(*words, "short.tar.zst").exit_code == expected
    assert build(*words, *targets).exit_code == expected
    assert len(asked.builds) == 2 * (1 - expected)
    # Nothing of it is left to be done.
    result = build(*words, "whole-h200.tar.zst")
    assert result.stderr.startswith("error: output exists: whole-h200.tar.zst\n")


def test_what_cannot_be_sent_or_written_is_one_line_before_it_is(
    asked: Asked, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    result = build("--model", "empty", "--tokens", "1")
    assert "error: no config.json in folder: `empty`" in result.output
    targets = ("--target", "h200", "--target", "mi350x", "--compile-only")
    words = ("--model", LLAMA, "--tokens", "1", *targets)
    result = build(*words, "--out", tmp_path / "absent" / "folder")
    assert result.exit_code == 1
    assert not isinstance(result.exception, OSError)
    assert not asked.builds
