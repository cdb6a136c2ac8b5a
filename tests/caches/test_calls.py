"""What is noted of a model's calls, against the calls of the whole model."""

from typing import Any

import pytest
import torch
from tiny_models import KINDS, NO_SDPA, TINY
from torch.utils._pytree import tree_flatten

from flytune.caches.calls import Calls, moved
from flytune.caches.program import ProgramSpec, build_program, count_kinds, meta_model
from flytune.caches.weights import materialise
from flytune.shapes.errors import FlytuneError

CPU = torch.device("cpu")


def spec_of(name: str, **how: Any) -> ProgramSpec:
    return ProgramSpec(TINY[name], "eager" if name in NO_SDPA else "sdpa", **how)


def real_calls(spec: ProgramSpec, hidden: torch.Tensor) -> list[Any]:
    """How the whole model, with all its weights, calls each of its layers."""
    model, config = meta_model(spec)
    materialise(model, model, seed=1, device=CPU)
    called: list[Any] = []
    layers = model.get_decoder()
    layers = getattr(layers, "layers", None) or layers.h
    for layer in layers:
        layer.register_forward_pre_hook(
            lambda _, args, kwargs: called.append((args, kwargs)), with_kwargs=True
        )
    with torch.no_grad():
        model.get_decoder()(inputs_embeds=hidden, use_cache=False)
    assert len(called) == config.num_hidden_layers
    return called


@pytest.mark.parametrize("name", TINY)
def test_a_layer_is_called_as_the_whole_model_calls_it(name: str) -> None:
    spec = spec_of(name)
    calls = Calls(*meta_model(spec))
    assert tuple(kind.name for kind in calls.kinds) == KINDS.get(name, ("layer",)) or (
        name == "gemma3_text"
    )
    hidden = calls.hidden(1, 8, seed=5)
    real = real_calls(spec, hidden)
    for kind in calls.kinds:
        noted = calls.of_layer(kind.first, hidden)
        (args, kwargs), (own_args, own_kwargs) = real[kind.first], noted
        assert kwargs.keys() == own_kwargs.keys()
        # What went through earlier layers is another value of the same form.
        own, whole = (tree_flatten((a[1:], k)) for a, k in (noted, real[kind.first]))
        assert own[1] == whole[1]
        for one, other in zip(own[0], whole[0], strict=True):
            if isinstance(one, torch.Tensor):
                assert torch.equal(one, other), name
            else:
                assert one == other
        assert own_args[0].shape == args[0].shape


def test_layers_that_differ_are_kinds() -> None:
    # Every sixth layer of Gemma 3 sees all tokens.
    spec = ProgramSpec({**TINY["gemma3_text"], "num_hidden_layers": 12}, "sdpa")
    kinds = Calls(*meta_model(spec)).kinds
    assert [(kind.first, kind.name) for kind in kinds] == [
        *((0, "layer 0"), (5, "layer 5"))
    ]
    names = [piece.name for piece in build_program(spec, seed=1)]
    assert names == ["layer 0", "layer 5", "head"]
    assert count_kinds(spec) == 2
    assert count_kinds(ProgramSpec(spec.config, "sdpa", bake="model")) == 1


@pytest.mark.parametrize("name", ["mixtral", "falcon", "granite"])
def test_the_pieces_run(name: str) -> None:
    for piece in build_program(spec_of(name), seed=1):
        args, kwargs = piece.inputs(8, 3)
        with torch.no_grad():
            output = piece.module(*args, **kwargs)
        first = output[0] if isinstance(output, tuple) else output
        width = 256 if piece.name == "head" else 64
        assert first.shape == (1, 8, width)
        assert first.isfinite().all()


def test_the_head_has_memory_of_its_own() -> None:
    calls = Calls(*meta_model(spec_of("granite")))
    head = calls.head()
    assert [type(part).__name__ for part in head] == ["GraniteRMSNorm", "Linear"]
    assert {p.device.type for p in head.parameters()} == {"meta"}


def test_a_layer_is_taken_once() -> None:
    calls = Calls(*meta_model(spec_of("granite")))
    assert next(calls.take_layer(0).parameters()).is_meta
    with pytest.raises(KeyError):
        calls.take_layer(0)


def test_a_model_that_does_not_run_so_is_named() -> None:
    model, config = meta_model(spec_of("granite"))
    base = model.model
    base.forward = lambda **_: 1 / 0
    with pytest.raises(FlytuneError) as caught:
        Calls(model, config)
    assert str(caught.value) == (
        "GraniteForCausalLM does not run without its layers: ZeroDivisionError: "
        "division by zero"
    )
    model, config = meta_model(spec_of("granite"))
    config.num_hidden_layers = 7
    with pytest.raises(FlytuneError) as caught:
        Calls(model, config)
    assert str(caught.value) == (
        "a model cannot be taken apart: no list of 7 layers in GraniteForCausalLM"
    )


def test_arguments_move_with_what_is_in_them() -> None:
    cache, other = object(), object()
    noted = ((torch.ones(2),), {"cache": cache, "pair": (torch.ones(1), None), "n": 3})
    (hidden,), named = moved(noted, torch.device("meta"), of=cache, by=other)
    assert hidden.is_meta
    assert named["cache"] is other
    assert named["pair"][0].is_meta
    assert (named["pair"][1], named["n"]) == (None, 3)


@pytest.mark.parametrize(
    ("name", "attention", "said"),
    [
        ("gemma2", "sdpa", "Gemma2ForCausalLM does not support an attention"),
        ("granite", "flash_attention_2", "FlashAttention2"),
        ("granite", "quick", "quick"),
    ],
)
def test_an_attention_that_transformers_refuses(
    name: str, attention: str, said: str
) -> None:
    with pytest.raises(FlytuneError) as caught:
        count_kinds(ProgramSpec(TINY[name], attention))
    begin = f"transformers does not build the model with {attention} attention: "
    assert str(caught.value).startswith(begin)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_whole_model_is_not_one_graph_with_flex_attention() -> None:
    spec = ProgramSpec(TINY["granite"], "flex_attention", bake="model")
    with pytest.raises(FlytuneError, match="several graphs") as caught:
        count_kinds(spec)
    assert str(caught.value.hint).startswith("--bake layers")
