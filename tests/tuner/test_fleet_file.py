"""The file of a fleet: what it may say, and what beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builds import LLAMA, QWEN2
from click.testing import CliRunner, Result

from flytune.shapes.errors import FlytuneError
from flytune.tuner import fleet_plan
from flytune.tuner.build_command import build_command
from flytune.tuner.cli import main
from flytune.tuner.fleet_file import read_fleet
from flytune.tuner.fleet_plan import Asked

MODEL = f'[[models]]\nmodel = "{LLAMA}"\n'


class Planned(FlytuneError):
    """Ends a fleet once it is planned."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    found: list[Asked] = []

    def note(models: Sequence[Asked], *_: Any) -> None:
        found.extend(models)
        raise Planned("planned")

    monkeypatch.setattr(fleet_plan, "plan_fleet", note)
    return found


def invoke(folder: Path, text: str, *words: str) -> Result:
    path = folder / "fleet.toml"
    path.write_text(text)
    arguments = ["build", "--models", str(path), "--out", str(folder / "out"), *words]
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("text", "error", "hint"),
    [
        ("[defaults]\ntp = 1", "there is no model", "give each model a table that"),
        ("models = 3", "there is no model", "give each model a table that"),
        ("models = []", "there is no model", ""),
        ("model = 'x'\n" + MODEL, "unknown key: `model`", "known are [defaults] and"),
        ("defaults = 1\n" + MODEL, "[defaults] is no table: `1`", ""),
        (
            "[defaults]\ntokns = '1'\n" + MODEL,
            "[defaults]: unknown key: `tokns`",
            "did you mean `tokens`?",
        ),
        (
            f"{MODEL}bake_passes = 3",
            f"[[models]] 1 ({LLAMA}): unknown key: `bake_passes`",
            "did you mean `bake-passes`?",
        ),
        (f"{MODEL}models = 'x'", "unknown key: `models`", ""),
        (
            "[defaults]\nmodel = 'x'\n" + MODEL,
            "key is of [[models]] alone: `model`",
            "",
        ),
        ("[defaults]\nout = 'x'\n" + MODEL, "key is of [[models]] alone: `out`", ""),
        (f"{MODEL}ray = 'auto'", "key is of [defaults] alone: `ray`", ""),
        (f"{MODEL}tp = '2'", "`tp` must be a number: `2`", ""),
        (f"{MODEL}tp = true", "`tp` must be a number: `True`", ""),
        (
            "[defaults]\ngpu-hour-price = true\n" + MODEL,
            "[defaults]: `gpu-hour-price` must be a number: `True`",
            "",
        ),
        (f"{MODEL}dynamic = 1", "`dynamic` must be true or false: `1`", ""),
        (f"{MODEL}policy = 3", "`policy` must be a string: `3`", ""),
        (f"{MODEL}tokens = 1.5", "`tokens` must be a string, a number, or", ""),
        (f"{MODEL}tokens = []", "`tokens` must be a string, a number, or", ""),
        (f"{MODEL}exclude = [1]", "`exclude` must be a string, or strings in", ""),
        (f"{MODEL}arguments = 'x'", "`arguments` must be strings: `x`", ""),
        (f"{MODEL}name = ''", "`name` must be a string: ``", ""),
        (f"{MODEL}name = '../x'", "`name` must be a file's name: `../x`", ""),
        (f"{MODEL}out = 1", "`out` must be a string: `1`", ""),
    ],
)
def test_a_file_that_says_it_wrong(
    tmp_path: Path, text: str, error: str, hint: str
) -> None:
    result = invoke(tmp_path, text)
    assert (result.exit_code, result.stdout) == (1, "")
    first, *rest = result.stderr.splitlines()
    assert first.startswith(f"error: {tmp_path / 'fleet.toml'}: ")
    assert error in first
    assert "".join(rest).startswith(f"hint: {hint}" if hint else "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet.toml"]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("tp = 0", "Invalid value for '--tp': 0 is not in the range x>=1"),
        ("tokens = 'x'", "Invalid value for '--tokens': "),
        ("shapes = 'f.csv'", "give --model or --shapes, and not both"),
        ("phase = 'decode'", "--phase decode and --context go together"),
        ("arguments = ['x']", "unexpected argument: x"),
    ],
)
def test_a_value_that_a_build_refuses_names_its_table(
    tmp_path: Path, more: str, error: str
) -> None:
    result = invoke(tmp_path, MODEL + more)
    where = f"{tmp_path / 'fleet.toml'}: [[models]] 1 ({LLAMA})"
    assert result.stderr.startswith(f"error: {where}: {error}")
    assert result.exit_code == 1


@pytest.mark.parametrize("price", ["4.5", "4", "'4.5'"])
def test_a_price_is_a_number(tmp_path: Path, asked: list[Asked], price: str) -> None:
    text = f"[defaults]\ngpu-hour-price = {price}\n{MODEL}"
    assert invoke(tmp_path, text).stderr == "error: planned\n"
    assert asked[0].options.gpu_hour_price == float(price.strip("'"))


@pytest.mark.parametrize("content", [b"[[models", b"\xff\xfe", b" " * (2**20 + 1)])
def test_what_is_no_file_of_models(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fleet.toml"
    for _ in range(2):
        with pytest.raises(FlytuneError, match=str(path)):
            read_fleet(path, build_command)
        path.write_bytes(content)
    with pytest.raises(FlytuneError, match=str(path)):
        read_fleet(path, build_command)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "x"), "--model does not go with --models"),
        (("--shapes", "x"), "--shapes does not go with --models"),
        (("--bake-cmd", "x"), "--bake-cmd does not go with --models"),
        (("--exclude", "x"), "--exclude does not go with --models"),
        (("--out", "b.tar.zst"), "--out is a folder beside --models: b.tar.zst"),
        (("--", "x"), "arguments do not go with --models"),
    ],
)
def test_options_of_one_model_do_not_go_with_a_fleet(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    result = invoke(tmp_path, MODEL, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_table_comes_before_the_command_line_and_that_before_the_defaults(
    tmp_path: Path, asked: list[Asked]
) -> None:
    text = f"""
[defaults]
tokens = [1, "4..5"]
threads = 3
bake-passes = 5
dynamic = true
trust = ["a.pub", "b.pub"]

[[models]]
model = "{LLAMA}"
out = "elsewhere/b"

[[models]]
name = "second"
model = "{QWEN2}"
threads = 1
tokens = 16
dynamic = false
"""
    result = invoke(tmp_path, text, "--threads", "2", "--no-sign")
    assert result.stderr == "error: planned\n"
    first, second = (one.options for one in asked)
    assert [one.name for one in asked] == [None, "second"]
    assert (first.model, second.model) == (str(LLAMA), str(QWEN2))
    assert (first.tokens, second.tokens) == ((1, 4, 5), (16,))
    assert (first.threads, second.threads) == (2, 1)
    assert (first.phases.dynamic, second.phases.dynamic) == (True, False)
    assert (first.out, second.out) == (Path("elsewhere/b"), None)
    for options in (first, second):
        assert (options.bake_passes, options.sign) == (5, False)
        assert options.trust.keys == (Path("a.pub"), Path("b.pub"))
    # The folder was made for it, and is gone again.
    assert not (tmp_path / "out").exists()


def test_models_that_are_no_model_of_ours(tmp_path: Path, asked: list[Asked]) -> None:
    text = """
[[models]]
name = "served"
engine = "vllm"
bake = "vllm"
arguments = ["facebook/opt-125m", "--max-model-len", "64"]

[[models]]
name = "script"
bake-cmd = ["python", "a script.py"]

[[models]]
name = "rank"
model = "Qwen3-4B"
tp = 2
compile-only = true
backends = ["ATEN", "TRITON"]
"""
    invoke(tmp_path, text)
    served, script, rank = (one.options for one in asked)
    assert served.vllm == ("facebook/opt-125m", "--max-model-len", "64")
    assert script.bake_cmd == ("python", "a script.py")
    assert (rank.tp, rank.compile_only) == (2, True)
    assert rank.backends == ("ATEN", "TRITON")
