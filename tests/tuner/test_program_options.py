"""How the words of a build say what of a model is baked, and how it is called."""

from pathlib import Path
from typing import Any

import pytest
from builds import LLAMA
from click.testing import CliRunner, Result

from flytune.shapes.errors import FlytuneError
from flytune.tuner import build
from flytune.tuner.cli import main
from flytune.tuner.options import BuildOptions, Phases


class Asked(FlytuneError):
    """Ends a build that is only asked for."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[BuildOptions]:
    found: list[BuildOptions] = []

    def note(options: BuildOptions, _: Any) -> None:
        found.append(options)
        raise Asked("asked")

    monkeypatch.setattr(build, "build", note)
    return found


def invoke(folder: Path, *words: str) -> Result:
    arguments = ["build", "--model", str(LLAMA), "--out", str(folder / "b"), *words]
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("words", "bake"),
    [
        ((), "layers"),
        (("--bake", "layers"), "layers"),
        (("--bake", "transformers"), "layers"),
        (("--bake", "whole"), "model"),
        (("--bake", "model"), "model"),
    ],
)
def test_the_words_for_what_a_graph_holds(
    tmp_path: Path, asked: list[BuildOptions], words: tuple[str, ...], bake: str
) -> None:
    invoke(tmp_path, *words)
    assert [options.bake for options in asked] == [bake]


@pytest.mark.parametrize(
    ("words", "tokens", "phases"),
    [
        ((), (1, 8), Phases()),
        (("--phase", "prefill"), (1, 8), Phases()),
        (("--dynamic",), (1, 8), Phases(dynamic=True)),
        (
            ("--phase", "decode", "--context", "64"),
            (1, 8),
            Phases(decode=(1, 8), context=64),
        ),
        (
            ("--phase", "decode,prefill", "--context", "64"),
            (1, 8),
            Phases(prefill=(1, 8), decode=(1, 8), context=64),
        ),
        (
            ("--phase", "prefill, decode", "--context", "64", "--batch", "8,16"),
            (1, 8, 16),
            Phases(prefill=(1, 8), decode=(8, 16), context=64),
        ),
    ],
)
def test_the_words_for_how_it_is_called(
    tmp_path: Path,
    asked: list[BuildOptions],
    words: tuple[str, ...],
    tokens: tuple[int, ...],
    phases: Phases,
) -> None:
    invoke(tmp_path, "--tokens", "1,8", *words)
    (options,) = asked
    assert (options.tokens, options.phases) == (tokens, phases)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--phase", "decode"), "--phase decode and --context go together"),
        (("--context", "64"), "--phase decode and --context go together"),
        (("--phase", "chat"), "unknown phase: `chat`; known are prefill and decode"),
        (("--phase", ""), "unknown phase: ``; known are prefill and decode"),
        (("--batch", "1"), "--batch needs --phase decode,prefill"),
        (
            ("--phase", "decode", "--context", "64", "--batch", "1"),
            "--batch needs --phase decode,prefill",
        ),
        (
            ("--phase", "decode,prefill", "--context", "64", "--batch", "all"),
            "Invalid value for '--batch': no such word for tokens: `all`",
        ),
        (("--phase", "decode", "--context", "1"), "1 is not in the range x>=2"),
        (("--bake", "graph"), "Invalid value for '--bake'"),
    ],
)
def test_words_that_do_not_go_together(
    tmp_path: Path, asked: list[BuildOptions], words: tuple[str, ...], said: str
) -> None:
    result = invoke(tmp_path, *words)
    assert (result.exit_code, asked) == (2, [])
    assert said in " ".join(result.stderr.split())
