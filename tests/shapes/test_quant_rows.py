"""Schemes asked for by name, what ranks may cut, and counts of layers that differ."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from family_variants import VARIANTS, named, shapes, variant
from hypothesis import given, settings
from hypothesis import strategies as st

from flytune.shapes.by_hand import read_by_hand
from flytune.shapes.derive import derive_shapes
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import FP4, FP8, Engine, GemmShape
from flytune.shapes.model_config import ModelConfig
from flytune.shapes.quant_schemes import BY_NAME, Quant
from flytune.shapes.splits import SplitError

Load = Callable[[str], ModelConfig]

TYPES = {
    "fp8": ("tensorwise", FP8, FP8),
    "fp8_rowwise": ("rowwise", FP8, FP8),
    "fp8_block": ("block128", FP8, FP8),
    "mxfp8": ("mxfp8", FP8, FP8),
    "mxfp4": ("mxfp4", FP4, FP4),
    "nvfp4": ("nvfp4", FP4, FP4),
    "awq": ("awq", "bfloat16", "uint4"),
    "gptq": ("gptq", "bfloat16", "int4"),
}


def derive(
    config: ModelConfig, quant: Quant | None, tp: int = 1, engine: Engine = "vllm"
) -> tuple[GemmShape, ...]:
    return derive_shapes(config, tp=tp, engine=engine, tokens=(8,), quant=quant)


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
@pytest.mark.parametrize("quant", BY_NAME)
def test_a_scheme_is_of_the_layers_linears(
    load: Load, engine: Engine, quant: Quant
) -> None:
    config = load("Llama-3.3-70B-Instruct")
    plain, made = derive(config, None, 8, engine), derive(config, quant, 8, engine)
    assert [(s.m, s.n, s.k, s.count) for s in made] == [
        (s.m, s.n, s.k, s.count) for s in plain
    ]
    *layers, head = made
    assert {(s.op, s.scaling, s.a_dtype, s.b_dtype) for s in layers} == {
        ("scaled_mm", *TYPES[quant])
    }
    assert {(s.out_dtype, s.layout, s.bias) for s in layers} == {
        ("bfloat16", "TN", False)
    }
    for one, before in zip(layers, plain, strict=False):
        assert one.rule == f"{before.rule}; {BY_NAME[quant].words}"
    assert head == replace(plain[-1], rule=f"{plain[-1].rule}; not in {quant}")


@pytest.mark.parametrize("quant", [None, *BY_NAME])
def test_what_is_listed_is_read_back(
    load: Load, quant: Quant | None, tmp_path: Path
) -> None:
    config = load("Qwen3-235B-A22B" if quant else "gpt-oss-120b")
    made = derive(config, quant, 2)
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row.to_row()) for row in made))
    assert read_by_hand(path, (1,)).shapes == made


def test_every_word_has_its_types() -> None:
    assert set(TYPES) == set(BY_NAME) == set(get_args(Quant)) - {"bf16"}


@pytest.mark.parametrize("quant", ["fp8_block", "mxfp4"])
def test_experts_carry_the_scheme_and_routers_do_not(load: Load, quant: Quant) -> None:
    made = derive(load("Qwen3-235B-A22B"), quant, 4)
    experts = named(made, r"experts\.w\d+")
    assert [(r.op, r.scaling, r.groups) for r in experts] == [
        ("grouped_mm", TYPES[quant][0], 128)
    ] * 2
    (router,) = named(made, r"\.gate")
    assert (router.op, router.scaling) == ("mm", None)
    assert router.rule.endswith(f"; not in {quant}, a router")


def test_experts_one_by_one_are_scaled_each(load: Load) -> None:
    made = derive_shapes(
        load("Qwen3-235B-A22B"),
        tp=4,
        engine="vllm",
        tokens=(8,),
        quant="mxfp8",
        experts="each",
    )
    (w2,) = named(made, r"experts\.w2")
    assert (w2.op, w2.scaling, w2.groups, w2.count) == ("scaled_mm", "mxfp8", 0, 6016)


def test_falcons_layers_are_layers_though_they_are_called_h(load: Load) -> None:
    made = derive(variant("Falcon, new"), "mxfp8")
    assert [r.scaling for r in made] == ["mxfp8"] * 4 + [None]


def test_a_bias_is_in_the_scaled_gemm_and_attention_in_the_models_type(
    load: Load,
) -> None:
    config = replace(load("Llama-3.1-8B-Instruct"), attention_bias=True)
    made = derive_shapes(
        config,
        tp=1,
        engine="transformers",
        tokens=(8,),
        attention="eager",
        quant="mxfp8",
    )
    assert [(s.op, s.bias) for s in made if "self_attn" in s.module] == [
        *[("scaled_mm", True)] * 3,
        *[("bmm", False)] * 2,
        ("scaled_mm", True),
    ]
    assert {s.a_dtype for s in made if s.op == "bmm"} == {"bfloat16"}


def test_bf16_is_the_models_own_type_or_says_so(load: Load) -> None:
    config = load("Qwen3-4B")
    own = derive(config, None, 1, "transformers")
    assert derive(config, "bf16", 1, "transformers") == own
    half = derive(replace(config, dtype="float16"), "bf16", 1, "transformers")
    assert {(s.op, s.a_dtype, s.out_dtype) for s in half} == {
        ("mm", "bfloat16", "bfloat16")
    }
    assert all(s.rule.endswith("; float16 runs as bfloat16") for s in half)


# hidden 4096 and 32 heads of 128 divide by all of them.
@pytest.mark.parametrize(
    ("quant", "inner", "tp", "message"),
    [
        ("mxfp4", 14352, 1, "a scale for each 32 inputs, which do not divide 14352"),
        ("nvfp4", 14344, 1, "a scale for each 16 inputs, which do not divide 14344"),
        ("gptq", 14400, 1, "a scale for each 128 inputs, which do not divide 14400"),
        ("awq", 14400, 1, "a scale for each 128 inputs, which do not divide 14400"),
        (
            "fp8_block",
            14400,
            2,
            "a scale for each 128 inputs, which do not divide 72",
        ),
    ],
)
def test_what_shares_a_scale_must_be_whole(
    load: Load, quant: Quant, inner: int, tp: int, message: str
) -> None:
    config = replace(load("Llama-3.1-8B-Instruct"), intermediate_size=inner)
    with pytest.raises(FlytuneError, match=message) as caught:
        derive(config, quant, tp)
    assert "(4096, " in str(caught.value)
    assert str(caught.value).endswith(": `model.layers.*.mlp.down_proj`")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("--tp 1 divides it") == (quant == "fp8_block")


@pytest.mark.parametrize("quant", ["fp8", "fp8_rowwise", "fp8_block"])
def test_a_whole_matrix_may_end_in_a_part_of_a_block(load: Load, quant: Quant) -> None:
    config = replace(load("Llama-3.1-8B-Instruct"), intermediate_size=14352)
    assert [r.k for r in named(derive(config, quant), "down_proj")] == [14352]


def test_outputs_that_lie_in_one_word_must_be_whole(load: Load) -> None:
    config = variant("StarCoder2", intermediate_size=1028, hidden_size=256)
    with pytest.raises(FlytuneError, match="8 outputs in a word, which do not divide"):
        derive(config, "gptq")


def test_a_part_of_a_block_may_be_in_what_vllm_merges(load: Load) -> None:
    # 1792 features a rank of gate and of up, and 14 blocks of each.
    config = replace(load("Llama-3.1-8B-Instruct"), intermediate_size=512 * 29)
    made = named(derive(config, "fp8_block", 4), "gate_up_proj")
    assert [(r.n, r.scaling) for r in made] == [(2 * 128 * 29, "block128")]
    odd = replace(config, num_attention_heads=32, num_key_value_heads=4, head_dim=64)
    (qkv,) = named(derive(odd, "fp8_block", 4), "qkv_proj")
    assert (qkv.n, qkv.scaling) == ((8 + 1 + 1) * 64, "block128")
    with pytest.raises(SplitError):
        derive(config, "fp8_block", 3)


def test_outputs_of_one_linear_are_not_cut_within_a_block(load: Load) -> None:
    config = variant("StarCoder2", hidden_size=1024, intermediate_size=1088)
    with pytest.raises(FlytuneError, match="128 outputs, which do not divide 544 of"):
        derive(config, "fp8_block", 2)


def test_nvfp4_is_padded_for_its_kernels(load: Load) -> None:
    config = replace(load("Llama-3.1-8B-Instruct"), intermediate_size=14352)
    (down,) = named(derive(config, "nvfp4"), "down_proj")
    assert (down.n, down.k) == (4096, 14368)
    assert down.rule.endswith(", padded from (4096, 14352) for CUTLASS")
    (own,) = named(derive(config, "nvfp4", 1, "transformers"), "down_proj")
    assert own.k == 14352


def test_groups_of_experts_in_integers_shrink_to_what_a_rank_holds(load: Load) -> None:
    made = named(derive(load("Qwen3-235B-A22B"), "gptq", 8), r"experts\.w\d+")
    assert [(r.n, r.k) for r in made] == [(384, 4096), (4096, 192)]
    assert all("for each 128 inputs, in the kernel for each 64" in r.rule for r in made)
    small = variant("Qwen3 MoE, dense layers", moe_intermediate_size=80)
    with pytest.raises(FlytuneError, match="128 inputs, which do not divide 80 of"):
        derive(replace(small, intermediate_size=512), "awq")


def test_experts_in_integers_are_padded_to_tiles() -> None:
    config = variant("Qwen3 MoE, dense layers", moe_intermediate_size=96)
    said = {"quant_method": "awq", "bits": 4, "group_size": 32}
    config = replace(config, intermediate_size=512, quantization=json.dumps(said))
    made = named(derive(config, None), r"experts\.w\d+")
    assert [(r.n, r.k) for r in made] == [(256, 256), (256, 128)]
    assert made[1].rule.endswith(", padded from (256, 96) for Marlin")


def test_ranks_offered_are_ranks_that_work(load: Load) -> None:
    config = load("Qwen2.5-72B-Instruct")
    with pytest.raises(FlytuneError, match="do not divide 3696 of") as caught:
        derive(config, "mxfp4", 8)
    assert caught.value.hint is not None
    offered = caught.value.hint.partition(" divides")[0].removeprefix("--tp ")
    assert offered == "1 or 2 or 4"
    for tp in offered.split(" or "):
        assert derive(config, "mxfp4", int(tp))


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(VARIANTS)),
    engine=st.sampled_from(("vllm", "transformers")),
    layers=st.sets(st.integers(0, 4)),
    what=st.sampled_from(("self_attn", "mlp", "")),
)
def test_layers_that_differ_add_up_to_all_of_them(
    name: str, engine: Engine, layers: set[int], what: str
) -> None:
    config = variant(name)
    ignored = [rf"model\.layers\.{i}\..*{what}.*" for i in sorted(layers)]
    said = {"quant_method": "fp8", "weight_block_size": None, "ignored_layers": ignored}
    if engine == "vllm":
        ignored = [rf"re:.*\.{i}\..*{what}.*" for i in sorted(layers)]
        weights = {"type": "float", "num_bits": 8, "strategy": "tensor"}
        group = dict.fromkeys(("weights", "input_activations"), weights)
        said = {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"targets": ["Linear"], **group}},
            "ignore": ignored,
        }
    quantised = replace(config, quantised="fp8", quantization=json.dumps(said))
    made = derive_shapes(quantised, tp=1, engine=engine, tokens=(8,))
    assert counts(made) == counts(shapes(config, 1, engine))
    assert all(row.count > 0 for row in made)


def counts(rows: tuple[GemmShape, ...]) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for row in rows:
        found[row.module, row.m, row.n, row.k, row.groups, row.batch] += row.count
    return found
