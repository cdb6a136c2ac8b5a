"""The program against the model that transformers itself builds."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import LLAMA, QWEN2

from flytune.caches.policy import cpu_policy
from flytune.caches.program import (
    Piece,
    ProgramSpec,
    build_program,
    lowered_counts,
    model_path,
)
from flytune.caches.rounds import relative_error
from flytune.caches.session import TOLERANCE
from flytune.shapes.errors import FlytuneError


def spec(path: Path, attention: str = "eager") -> ProgramSpec:
    return ProgramSpec(json.loads(path.read_text()), attention)


def pieces(path: Path, attention: str = "eager", seed: int = 3) -> tuple[Piece, ...]:
    return tuple(build_program(spec(path, attention), seed=seed))


def call(piece: Piece, tokens: int) -> Any:
    arguments, named = piece.inputs(tokens, 5)
    with torch.no_grad():
        return piece.module(*arguments, **named)


@pytest.mark.parametrize("path", [LLAMA, QWEN2])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_pieces_are_the_models_own(path: Path, attention: str) -> None:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    raw = json.loads(path.read_text())
    config = CONFIG_MAPPING[raw["model_type"]].from_dict(
        {**raw, "num_hidden_layers": 1}
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    layer, head = pieces(path, attention)
    model.model.layers[0].load_state_dict(layer.module.state_dict())
    norm, lm_head = head.module.children()
    model.model.norm.load_state_dict(norm.state_dict())
    model.lm_head.load_state_dict(lm_head.state_dict())
    (hidden,), _ = layer.inputs(8, 5)
    with torch.no_grad():
        expected = model(inputs_embeds=hidden).logits
        output = head.module(call(layer, 8))
    assert relative_error(output, expected) < TOLERANCE


@pytest.mark.parametrize("tied", [False, True])
def test_the_whole_model_is_transformers_own(tied: bool) -> None:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    raw = {**json.loads(LLAMA.read_text()), "num_hidden_layers": 3}
    raw["tie_word_embeddings"] = tied
    whole = ProgramSpec(raw, "sdpa", bake="model")
    (piece,) = build_program(whole, seed=3)
    assert (piece.name, whole.depth) == ("model", 3)
    assert piece.module.lm_head.weight is piece.module.model.embed_tokens.weight or (
        not tied
    )
    config = CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.load_state_dict(piece.module.state_dict())
    arguments, named = piece.inputs(8, 5)
    assert named["input_ids"].shape == (1, 8)
    with torch.no_grad():
        expected = model(*arguments, **named).logits
    assert relative_error(call(piece, 8).logits, expected) < TOLERANCE


def test_layers_of_the_whole_model_lie_in_one_memory() -> None:
    raw = {**json.loads(LLAMA.read_text()), "num_hidden_layers": 3}
    (piece,) = build_program(ProgramSpec(raw, "sdpa", bake="model"), seed=3)
    weights = [layer.mlp.up_proj.weight for layer in piece.module.model.layers]
    # Torch would see one parameter used thrice, and make a smaller graph.
    assert len({id(weight) for weight in weights}) == 3
    assert len({weight.data_ptr() for weight in weights}) == 1
    layer = piece.module.model.layers[0].mlp
    assert layer.up_proj.weight.data_ptr() != layer.gate_proj.weight.data_ptr()


def test_the_seed_decides_the_weights() -> None:
    first, again, other = (pieces(QWEN2, seed=seed)[0].module for seed in (3, 3, 4))
    same = zip(first.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    names = dict(other.named_parameters())
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, names[name]) == ("norm" in name), name
    assert first.self_attn.q_proj.bias.abs().min() >= 0
    assert first.self_attn.q_proj.bias.std() > 0


@pytest.mark.parametrize(
    ("piece", "module", "path"),
    [
        ("head", "0", "model.norm"),
        ("head", "1", "lm_head"),
        ("layer", "mlp.up_proj", "model.layers.*.mlp.up_proj"),
        ("layer", "", "model.layers.*"),
        ("model", "model.layers.31.mlp.up_proj", "model.layers.*.mlp.up_proj"),
        ("model", "model.layers.0", "model.layers.*"),
        ("model", "model.norm", "model.norm"),
        ("layer 5", "mlp.up_proj", "model.layers.*.mlp.up_proj"),
        ("decode layer", "mlp.up_proj", "model.layers.*.mlp.up_proj"),
        ("decode head", "1", "lm_head"),
        ("decode model", "transformer.h.3.mlp", "transformer.h.*.mlp"),
    ],
)
def test_paths_in_the_model(piece: str, module: str, path: str) -> None:
    assert model_path(piece, module) == path


def test_the_spec_survives_json() -> None:
    phases = {"prefill": (4, 8), "decode": (1,), "context": 32}
    whole = replace(spec(LLAMA), bake="model", **phases)
    assert ProgramSpec.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_a_spec_of_an_earlier_version_has_no_phases() -> None:
    row = spec(LLAMA).to_json()
    for name in ("prefill", "decode", "context"):
        del row[name]
    assert ProgramSpec.from_json(row) == spec(LLAMA)


@pytest.mark.parametrize(
    ("tokens", "dynamic", "lowered"),
    [
        ((1, 8, 4), False, (8, 4, 1)),
        ((1, 8, 4), True, (8, 1)),
        ((2, 8), True, (8,)),
        ((1,), True, (1,)),
        ((), True, ()),
    ],
)
def test_a_dynamic_graph_is_lowered_once(
    tokens: tuple[int, ...], dynamic: bool, lowered: tuple[int, ...]
) -> None:
    assert lowered_counts(tokens, dynamic=dynamic) == lowered


def test_the_counts_of_a_piece() -> None:
    policy = cpu_policy("unfrozen", tokens=(1, 9), threads=1, attention="sdpa")
    piece = Piece("head", torch.nn.Identity(), lambda *_: ((), {}))
    assert piece.counts(policy) == (9, 1)
    assert piece.counts(policy, between=True) == (9, 5, 1)
    assert replace(piece, tokens=(2, 4)).counts(policy) == (4, 2)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "unknown kind of program: `None`"),
        ({"kind": "vllm"}, "unknown kind of program: `vllm`"),
        ({"kind": "transformers"}, "program is malformed"),
        (
            {"kind": "transformers", "config": {}, "attention": "", "x": 1},
            "program is malformed",
        ),
    ],
)
def test_a_spec_that_is_none(row: dict[str, Any], said: str) -> None:
    with pytest.raises(FlytuneError, match=said):
        ProgramSpec.from_json(row)


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(FlytuneError, match="needs the build extra") as caught:
        pieces(LLAMA)
    assert caught.value.hint == "pip install 'flytune[build]'"


def test_the_error_is_relative_to_the_largest_value() -> None:
    reference = torch.tensor([4.0, -8.0])
    assert relative_error(torch.tensor([4.0, -7.0]), reference) == 1 / 8
    assert relative_error(reference, reference) == 0
    assert relative_error(torch.tensor([1.0]), torch.tensor([0.0])) == 1
    nan = relative_error(torch.tensor([4.0, float("nan")]), reference)
    assert nan != nan
