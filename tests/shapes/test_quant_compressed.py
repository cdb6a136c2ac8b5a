"""The reader of compressed-tensors: types, blocks, targets, and what is ignored."""

from typing import Any

import pytest
from quantised_configs import (
    BF16,
    INT8,
    LLAMA,
    W8A8,
    compressed,
    family,
    floats,
    group,
    quantised,
    rows,
)

from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import FP4, FP8


def test_compressed_tensors_refuses_parts_of_blocks_within_what_is_merged() -> None:
    said = compressed(
        group(floats(8, "block", **BLOCKS), floats(8, "group", group_size=128))
    )
    with pytest.raises(FlytuneError, match="128 outputs, which do not divide 64 of"):
        rows(quantised(said))


BLOCKS = {"block_structure": [128, 128]}
INT4 = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 128}


@pytest.mark.parametrize(
    ("weights", "inputs", "scaling", "types"),
    [
        (floats(8, "tensor"), floats(8, "tensor"), "tensorwise", (FP8, FP8)),
        (floats(8, None), floats(8, None), "tensorwise", (FP8, FP8)),
        (floats(8, "channel"), floats(8, "token"), "rowwise", (FP8, FP8)),
        (floats(8, "tensor"), floats(8, "token"), "rowwise", (FP8, FP8)),
        (floats(8, "channel"), floats(8, "tensor"), "rowwise", (FP8, FP8)),
        (
            floats(8, "block", **BLOCKS),
            floats(8, "group", group_size=128),
            *("block128", (FP8, FP8)),
        ),
        (
            floats(4, "tensor_group", group_size=16),
            floats(4, "tensor_group", group_size=16),
            *("nvfp4", (FP4, FP4)),
        ),
        (
            floats(4, "group", group_size=32),
            floats(4, "group", group_size=32),
            *("mxfp4", (FP4, FP4)),
        ),
        (floats(4, "group", group_size=32), None, "mxfp4_weight", (BF16, FP4)),
        (
            floats(8, "group", group_size=32),
            floats(8, "group", group_size=32),
            *("mxfp8", (FP8, FP8)),
        ),
        (INT4, None, "gptq", (BF16, "int4")),
        (INT4 | {"symmetric": False}, None, "awq", (BF16, "uint4")),
        (INT4 | {"num_bits": 8}, None, "gptq", (BF16, "int8")),
        (INT4 | {"strategy": "channel"}, None, "gptq", (BF16, "int4")),
    ],
)
def test_compressed_tensors_by_its_types(
    weights: dict[str, Any],
    inputs: dict[str, Any] | None,
    scaling: str,
    types: tuple[str, str],
) -> None:
    base = LLAMA | {"num_key_value_heads": 8}
    *layers, head = rows(quantised(compressed(group(weights, inputs)), base))
    assert {(r.op, r.scaling, (r.a_dtype, r.b_dtype)) for r in layers} == {
        ("scaled_mm", scaling, types)
    }
    assert head.scaling is None


ATTENTION = ["qkv_proj", "o_proj"]
MLP = ["gate_up_proj", "down_proj"]


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        (compressed(group(*W8A8), ignore=("lm_head",)), []),
        (compressed(group(*W8A8), ignore=("re:.*down_proj",)), ["down_proj"]),
        (
            compressed(group(*W8A8), ignore=("re:.*self_attn.*",)),
            ATTENTION,
        ),
        # The name that the engine gives to what it merges.
        (compressed(group(*W8A8), ignore=("re:.*qkv_proj",)), ["qkv_proj"]),
        (
            compressed(group(*W8A8, "re:.*mlp.*")),
            ATTENTION,
        ),
        (compressed(group(*W8A8, "RowParallelLinear")), ["qkv_proj", "gate_up_proj"]),
        (
            compressed(group(*W8A8, "LlamaAttention")),
            [*ATTENTION, *MLP],
        ),
    ],
)
def test_targets_and_ignored_modules_of_compressed_tensors(
    said: dict[str, Any], plain: list[str]
) -> None:
    made = [r for r in rows(quantised(said)) if "*" in r.module]
    assert [r.module.rpartition(".")[2] for r in made if r.scaling is None] == plain


def test_each_group_of_compressed_tensors_has_its_own_types() -> None:
    said = compressed(
        group(*W8A8),
        group(INT4, None, "re:.*mlp[.].*"),
        ignore=("lm_head",),
    )
    made = rows(quantised(said))
    # A name comes before a class, though its group is later.
    assert [r.scaling for r in made] == ["rowwise", "rowwise", "gptq", "gptq", None]


def test_kimi_has_integers_in_its_routed_experts_alone() -> None:
    said = compressed(
        group(INT4 | {"group_size": 16}, None),
        ignore=(
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
        ),
    )
    made = rows(family("DeepSeek V3, biases", said, model_type="kimi_k2"))
    scaled = [r.module.rpartition("*.")[2] for r in made if r.scaling]
    assert scaled == ["mlp.experts.w13", "mlp.experts.w2"]
    assert {r.b_dtype for r in made if r.scaling} == {"int4"}


def test_a_head_is_quantised_where_it_is_targeted_by_name() -> None:
    said = compressed(group(*W8A8, "Linear", "re:.*lm_head"))
    assert rows(quantised(said))[-1].scaling == "rowwise"


def test_transformers_decompresses_whatever_types_there_are() -> None:
    said = compressed(group(INT8, INT8 | {"strategy": "token"}))
    assert {r.op for r in rows(quantised(said), "transformers")} == {"mm"}
