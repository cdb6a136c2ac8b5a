"""A step of decoding: a token of each sequence, and a static cache."""

from typing import Any

import pytest
import torch
from tiny_models import TINY

from flytune.caches.program import Piece, ProgramSpec, build_program, count_kinds
from flytune.shapes.errors import FlytuneError

CONTEXT = 16


def pieces(bake: Any = "layers", **how: Any) -> tuple[Piece, ...]:
    spec = ProgramSpec(TINY["granite"], "sdpa", bake=bake, context=CONTEXT, **how)
    return tuple(build_program(spec, seed=1))


def run(piece: Piece, sequences: int, seed: int = 3) -> tuple[torch.Tensor, Any]:
    args, kwargs = piece.inputs(sequences, seed)
    with torch.no_grad():
        output = piece.module(*args, **kwargs)
    return getattr(output, "logits", output), kwargs["cache"]


def test_each_part_has_both_phases() -> None:
    both = pieces(prefill=(4, 8), decode=(1, 2))
    assert [(p.name, p.tokens) for p in both] == [
        ("layer", (4, 8)),
        ("decode layer", (1, 2)),
        ("head", (4, 8)),
        ("decode head", (1, 2)),
    ]
    assert both[0].module is both[1].module
    assert [p.name for p in pieces("model", decode=(2,))] == ["decode model"]
    (hidden,), _ = both[3].inputs(2, 1)
    assert hidden.shape == (2, 1, 64)


@pytest.mark.parametrize("bake", ["layers", "model"])
def test_each_call_finds_the_cache_as_it_was(bake: str) -> None:
    piece = pieces(bake, decode=(2, 3))[0]
    first, cache = run(piece, 2)
    layer = cache.layers[0]
    assert layer.keys.shape == (2, 2, CONTEXT, 16)
    assert int(layer.cumulative_length) == CONTEXT // 2 + 1
    again, same = run(piece, 2)
    # A server keeps its cache, and Dynamo tells one from another.
    assert same is cache
    assert torch.equal(first, again)
    other, own = run(piece, 3)
    assert own is not cache
    assert other.shape[0] == 3


def test_earlier_keys_are_seen() -> None:
    piece = pieces(decode=(2,))[0]
    first, cache = run(piece, 2)
    args, kwargs = piece.inputs(2, 3)
    cache.layers[0].values[:, :, 0] += 4
    with torch.no_grad():
        changed = piece.module(*args, **kwargs)
    assert not torch.equal(first, changed)
    args, kwargs = piece.inputs(2, 3)
    cache.layers[0].values[:, :, CONTEXT // 2 + 1 :] += 4
    with torch.no_grad():
        unchanged = piece.module(*args, **kwargs)
    assert torch.equal(first, unchanged)


def test_a_layer_has_no_other_layers_cache() -> None:
    _, cache = run(pieces(decode=(2,))[0], 2)
    assert [layer.is_initialized for layer in cache.layers] == [
        *(True, False, False, False)
    ]


def test_a_window_counts_in_python() -> None:
    spec = ProgramSpec(TINY["gemma3_text"], "sdpa", decode=(1,), context=CONTEXT)
    with pytest.raises(FlytuneError, match="StaticSlidingWindowLayer") as caught:
        count_kinds(spec)
    assert "--phase prefill" in str(caught.value.hint)
