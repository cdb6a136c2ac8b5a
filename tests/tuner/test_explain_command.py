"""What needs no vLLM; the rest is in tests/vllm."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from small_bundles import bare_manifest

from flytune.caches.keyring import own_key
from flytune.caches.packing import pack
from flytune.caches.vllm_factors import VllmFactors, program_row
from flytune.shapes.errors import FlytuneError
from flytune.tuner.explain_command import explain_command

KEY, OTHER = "a" * 64, "b" * 64
ARGUMENTS = ("llama", "--max-model-len", "512")


def factors(key: str = KEY, length: int = 512, **shapes: Any) -> VllmFactors:
    rows = {"model_config": {"model": "llama", "max_model_len": str(length)}}
    named = {"environment": {"VLLM_USE_MEGA_AOT_ARTIFACT": "true"}, **rows}
    return VllmFactors(
        version="0.32.0",
        complete=True,
        keys={"LlamaModel.forward": key},
        parts={p: {"hash": repr(row), "factors": row} for p, row in named.items()},
        sources={},
        directory=("", "", ""),
        shapes={
            **{"mode": "VLLM_COMPILE", "ahead": True, "device": "cpu", "layers": 2},
            **{"compile_sizes": [1], "capture_sizes": [], "ranges": [[1, 512]]},
            **{"pieces": True, "ranks": 1, "lora": False, **shapes},
        },
        exact=True,
    )


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., str]:
    def packed(program: dict[str, Any], *, signed: bool = True) -> str:
        manifest = bare_manifest(
            model={"name": "llama"},
            program=program,
            policy={"env": {"SERVING": "1"}, "inductor": {"max_autotune": True}},
        )
        (tmp_path / "staged").mkdir()
        path = tmp_path / "b.tar.zst"
        keys = [own_key()] if signed else []
        return str(pack(tmp_path / "staged", manifest, path, keys=keys))

    return packed


@pytest.fixture
def bundle(make: Callable[..., str]) -> str:
    return make(program_row(ARGUMENTS, factors()))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """An engine whose key changes with its arguments; returns what it was asked."""
    seen: list[Sequence[str]] = []

    def ask(
        words: Sequence[str], env: dict[str, str], inductor: dict[str, bool]
    ) -> VllmFactors:
        assert (env["SERVING"], inductor) == ("1", {"max_autotune": True})
        seen.append(words)
        if tuple(words) == ARGUMENTS:
            return factors()
        return factors(OTHER, 1024, lora="--enable-lora" in words)

    monkeypatch.setattr("flytune.caches.vllm_factors.ask", ask)
    return seen


def run(*words: str) -> Any:
    return CliRunner().invoke(explain_command, words)


def test_a_hit(bundle: str, asked: list[Sequence[str]]) -> None:
    result = run(bundle, "--engine", "vllm", "--", *ARGUMENTS)
    assert (result.exit_code, result.stdout) == (
        0,
        f"hit      vLLM 0.32.0 looks for {KEY[:16]}, which the bundle holds\n",
    )
    # Left out, they are the bundle's own.
    assert run(bundle, "--engine", "vllm").exit_code == 0
    assert asked == [list(ARGUMENTS)] * 2


@pytest.mark.usefixtures("asked")
def test_a_miss(bundle: str) -> None:
    result = run(bundle, "--engine", "vllm", "--", "llama", "--max-model-len", "1024")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"miss     vLLM 0.32.0 looks for {OTHER[:16]}; the bundle holds {KEY[:16]}",
        "differs  model_config.max_model_len: baked `512`, here `1024`",
        "bake     6 graphs: 3 kinds of piece, 1 static size and 1 general range "
        "(1 to 512); about 0.5 min in one thread and 4 MB",
    ]


@pytest.mark.usefixtures("asked")
def test_as_json(bundle: str) -> None:
    result = run(bundle, "--engine", "vllm", "--json", "--", "llama")
    assert result.exit_code == 1
    first, second = map(json.loads, result.stdout.splitlines())
    assert first == {
        **{"row": "prediction", "hit": False, "exact": True, "reason": ""},
        **{"folders": [OTHER], "baked": [KEY], "version": "0.32.0"},
    }
    assert second == {
        **{"row": "difference", "factor": "model_config.max_model_len"},
        **{"baked": "512", "live": "1024", "also": [], "remark": ""},
    }


def test_lora(bundle: str, asked: list[Sequence[str]]) -> None:
    result = run(bundle, "--engine", "vllm", "--lora")
    assert result.exit_code == 1
    assert "bake     with LoRA every linear has its" in result.stdout
    run(bundle, "--engine", "vllm", "--lora", "--", "llama", "--enable-lora")
    assert asked == [[*ARGUMENTS, "--enable-lora"], ["llama", "--enable-lora"]]


def test_nothing_of_a_bundle_runs_for_which_nobody_vouches(
    make: Callable[..., str], asked: list[Sequence[str]]
) -> None:
    bundle = make(program_row(ARGUMENTS, factors()), signed=False)
    result = run(bundle, "--engine", "vllm")
    assert isinstance(result.exception, FlytuneError)
    assert "not signed" in str(result.exception)
    assert asked == []
    assert run(bundle, "--engine", "vllm", "--allow-unsigned").exit_code == 0


def test_another_program(make: Callable[..., str]) -> None:
    result = run(make({"kind": "transformers"}), "--engine", "vllm")
    assert isinstance(result.exception, FlytuneError)
    assert "of the kind: transformers" in str(result.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give SHAPE, --list, or --engine vllm"),
        (("--lora", "16x64x128"), "--lora is of an engine"),
        (("--", "llama", "--max-model-len", "512"), "need --engine vllm"),
        (("--engine", "vllm", "mm (16, 64, 128)"), "explained without --engine"),
        (("--engine", "vllm", "--", "mm", "16x64x128"), "explained without --engine"),
    ],
)
def test_the_words_of_one_form_with_the_other(
    bundle: str, words: tuple[str, ...], said: str
) -> None:
    result = run(bundle, *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
