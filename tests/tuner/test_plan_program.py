"""Which program a build bakes, and what it is called with."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builds import LLAMA
from tiny_models import NO_SDPA, TINY

from flytune.caches.program import ProgramSpec
from flytune.shapes.errors import FlytuneError
from flytune.tuner import plan, plan_device
from flytune.tuner.options import BuildOptions, Phases
from flytune.tuner.plan import GIB, Plan, make_plan, needed_bytes

DECODE = Phases(decode=(1, 8), context=64)
BOTH = Phases(prefill=(16,), decode=(8,), context=64)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_device, "live_profile", lambda: None)
    monkeypatch.setattr(plan, "free_bytes", lambda: 1024 * GIB)


def planned(folder: Path, **changes: Any) -> Plan:
    whole = BuildOptions(
        model=str(LLAMA),
        tokens=(1, 8),
        attention="sdpa",
        policy="unfrozen",
        threads=2,
        out=folder / "bundle",
        work=folder / "work",
        ray=None,
        from_bundle=None,
        bake_passes=3,
    )
    return make_plan(replace(whole, **changes))


def program(made: Plan) -> ProgramSpec:
    assert isinstance(made.program, ProgramSpec)
    return made.program


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "mixtral", "phi3"])
def test_the_layers_of_other_architectures_are_called(
    tmp_path: Path, name: str
) -> None:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )

    path = tmp_path / "config.json"
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name]
    config = {**TINY[name], "architectures": [architecture], "torch_dtype": "bfloat16"}
    path.write_text(json.dumps({**config, "num_hidden_layers": 30}))
    attention = "eager" if name in NO_SDPA else "sdpa"
    made = planned(tmp_path, model=str(path), attention=attention)
    assert program(made).config["model_type"] == name
    # Two kinds of layers, and each a graph at each of two sizes.
    limit = 2 * 2 * 30 if name in NO_SDPA else 8
    assert made.policy.dynamo["recompile_limit"] == limit


def test_decoding_is_planned_by_its_sequences(tmp_path: Path) -> None:
    made = planned(tmp_path, phases=DECODE)
    assert (program(made).prefill, program(made).decode) == ((), (1, 8))
    assert program(made).context == 64
    assert {shape.m for shape in made.shapes} == {1, 8}
    # Each layer writes to its own part of the cache.
    layers = program(made).config["num_hidden_layers"]
    assert made.policy.dynamo["recompile_limit"] == max(8, 2 * 2 * layers)
    assert made.work != planned(tmp_path).work


def test_attention_of_a_step_is_no_gemm(tmp_path: Path) -> None:
    made = planned(tmp_path, tokens=(16, 8), attention="eager", phases=BOTH)
    assert {(s.op, s.m) for s in made.shapes} == {("mm", 16), ("bmm", 16), ("mm", 8)}


def test_phases_of_one_size_are_planned_once(tmp_path: Path) -> None:
    same = Phases(prefill=(8,), decode=(8,), context=64)
    made = planned(tmp_path, tokens=(8,), phases=same)
    assert len(made.shapes) == len(set(made.shapes))
    assert made.shapes == planned(tmp_path, tokens=(8,)).shapes


def test_a_dynamic_graph_is_planned_for_its_largest_size(tmp_path: Path) -> None:
    made = planned(tmp_path, tokens=(1, 4, 8), phases=Phases(dynamic=True))
    assert {shape.m for shape in made.shapes} == {1, 8}
    assert made.policy.dynamic
    assert made.policy.tokens == (1, 4, 8)


def test_caches_take_memory(tmp_path: Path) -> None:
    made = planned(tmp_path)
    layer = replace(program(made), decode=(1, 7), context=2**20)

    def needed(spec: ProgramSpec) -> int:
        return needed_bytes(made.shapes, made.policy, spec)

    # Keys and values of two heads of 64, of one layer.
    caches = 2 * 8 * 2**20 * 2 * 64 * 2
    assert needed(replace(layer, decode=(2, 14))) - needed(layer) == caches
    whole = replace(layer, bake="model")
    # The model has two.
    assert needed(replace(whole, decode=(2, 14))) - needed(whole) == 2 * caches


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        (
            {"engine": "vllm", "phases": DECODE},
            "no program to call in phases: vllm's own",
            "leave out --phase and --dynamic",
        ),
        (
            {"attention": "quick"},
            "no program to bake: transformers does not build the model with quick "
            "attention: ",
            "compile for an accelerator, --target NAME, with --compile-only",
        ),
        (
            {"attention": "flex_attention", "bake": "model"},
            "no program to bake: a whole model with flex_attention is several graphs",
            "--bake layers, or the command that serves by --bake-cmd",
        ),
        (
            {"policy": "frozen", "phases": Phases(dynamic=True)},
            "a frozen graph is of one size",
            "leave out --dynamic, or build under the unfrozen policy",
        ),
    ],
)
def test_what_cannot_be_called_so_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str, hint: str
) -> None:
    with pytest.raises(FlytuneError) as caught:
        planned(tmp_path, **changes)
    assert str(caught.value).startswith(said)
    assert caught.value.hint == hint
    assert list(tmp_path.iterdir()) == []


def test_a_window_is_not_decoded_with(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(LLAMA.read_text()), **GEMMA}))
    with pytest.raises(FlytuneError, match="StaticSlidingWindowLayer") as caught:
        planned(tmp_path, model=str(path), phases=DECODE)
    assert "--phase prefill" in str(caught.value.hint)


GEMMA = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
