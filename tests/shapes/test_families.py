"""Families: a table worked out by hand, and what each does in its own way."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from family_variants import SMALL, named, shapes, variant

from flytune.shapes.derive import derive_shapes
from flytune.shapes.errors import FlytuneError
from flytune.shapes.fields import ConfigError
from flytune.shapes.gemm import Engine
from flytune.shapes.model_config import ModelConfig, parse_config
from flytune.shapes.plan import plan_shapes
from flytune.shapes.splits import SplitError

Load = Callable[[str], ModelConfig]

DATA = Path(__file__).parents[1] / "data"
HAND_MODELS = {
    "DeepSeek-V3/R1": "DeepSeek-V3",
    "Qwen2.5-72B": "Qwen2.5-72B-Instruct",
}
HAND_LAYERS = {
    "qkv": r"\.(qkv_proj|query_key_value)",
    "o": r"\.o_proj",
    "gate_up": r"\.mlp\.gate_up_proj",
    "down": r"\.mlp\.down_proj",
    "dense_gate_up": r"\.mlp\.gate_up_proj",
    "dense_down": r"\.mlp\.down_proj",
    "router": r"\.(gate|router)",
    "expert_w13": r"\.experts\.w13",
    "expert_w2": r"\.experts\.w2",
    "shared_gate_up": r"\.shared_experts\.gate_up_proj",
    "shared_down": r"\.shared_experts\.down_proj",
    "fused_qkv_a": r"\.fused_qkv_a_proj",
    "q_b": r"\.q_b_proj",
    "kv_b": r"\.kv_b_proj",
    "bmm q_nope": r"\.W_UK_T",
    "bmm attn": r"\.W_UV",
    "lm_head": "lm_head",
}


def test_every_row_worked_out_by_hand(load: Load, data: Path) -> None:
    with (data / "expected_hand.csv").open(newline="") as file:
        rows = tuple(csv.DictReader(file))
    checked = 0
    for row in rows:
        layer = re.split(r"[(*]| logical| as run", row["layer"])[0].strip()
        config, tp = load(HAND_MODELS.get(row["model"], row["model"])), int(row["tp"])
        listed = shapes(config, tp)
        if "as run (AITER pad 256)" in row["layer"]:
            listed = derive_shapes(
                config, tp=tp, engine="vllm", tokens=(8,), platform="rocm"
            )
        found = named(listed, HAND_LAYERS[layer])
        assert {(each.n, each.k) for each in found} == {
            (int(row["N"]), int(row["K"]))
        }, row
        assert found[0].bias == ("+bias" in row["layer"]), row
        if layer.startswith("bmm"):
            assert {(each.op, each.batch * each.tp) for each in found} == {("bmm", 128)}
        checked += 1
    assert checked == len(rows) == 112


def test_both_spellings_of_falcon_are_one_model(load: Load) -> None:
    new = {"num_hidden_layers": 60, "num_attention_heads": 128, "hidden_size": 8192}
    new |= {"new_decoder_architecture": True, "num_kv_heads": 8, "vocab_size": 65024}
    written = variant("Falcon, new", **new)
    old = load("Falcon-40B-RefinedWeb-keys")
    assert shapes(written, 8) == shapes(old, 8)
    assert named(shapes(old, 8), "query_key_value")[0].n == (16 + 1 + 1) * 64


def test_heads_of_falcon_7b_are_prime(load: Load) -> None:
    with pytest.raises(SplitError, match="num_attention_heads: `71`"):
        shapes(load("Falcon-7B"), 4)


def test_falcon_has_no_plan_in_transformers() -> None:
    with pytest.raises(SplitError, match="no tensor-parallel plan of: `Falcon"):
        shapes(variant("Falcon, new"), 2, "transformers")


def test_gemma_3_takes_its_class_defaults() -> None:
    config = variant("Gemma 3")
    assert (config.num_attention_heads, config.num_key_value_heads) == (8, 4)
    assert (config.head_dim, config.vocab_size) == (256, 262208)
    assert named(shapes(config), "qkv_proj")[0].n == (8 + 4 + 4) * 256


def test_a_checkpoints_fused_projection_is_one_gemm(load: Load) -> None:
    rows = shapes(load("Phi-4-mini-instruct"), 2, "transformers")
    assert [(row.module.rpartition(".")[2], row.n, row.k) for row in rows] == [
        ("qkv_proj", 2560, 3072),
        ("o_proj", 3072, 1536),
        ("gate_up_proj", 8192, 3072),
        ("down_proj", 3072, 4096),
        ("lm_head", 100032, 3072),
    ]


def test_experts_are_grouped_by_token_and_rank(load: Load) -> None:
    config = load("Qwen3-235B-A22B")
    rows = named(shapes(config, 4), r"experts\.w13")
    assert [row.problem for row in rows] == [("grouped_mm", 64, 768, 4096, 1, 128)]
    (whole,) = named(shapes(config, 8, ep=8), r"experts\.w13")
    assert whole.problem == ("grouped_mm", 8, 3072, 4096, 1, 16)
    assert (whole.ep, whole.tp) == (8, 8)
    assert "16 of 128 experts, 8 a token" in whole.rule
    assert named(shapes(config, 8, ep=8), "qkv_proj")[0].n == 1280


@pytest.mark.parametrize(
    ("tokens", "ep", "m", "called"),
    [(1, 1, 1, 8), (8, 1, 1, 64), (256, 1, 16, 128), (256, 8, 16, 16), (8, 8, 1, 8)],
)
def test_experts_one_by_one_are_called_as_often_as_they_have_tokens(
    load: Load, tokens: int, ep: int, m: int, called: int
) -> None:
    rows = derive_shapes(
        load("Qwen3-235B-A22B"),
        tp=8,
        ep=ep,
        engine="vllm",
        tokens=(tokens,),
        experts="each",
    )
    (w2,) = named(rows, r"experts\.w2")
    k = 192 if ep == 1 else 1536
    assert (w2.problem, w2.count) == (("mm", m, 4096, k, 1, 0), 94 * called)
    assert w2.rule.endswith(f"{called} experts with tokens, one at a time")


@pytest.mark.parametrize(
    ("name", "engine", "ep", "message"),
    [
        ("Qwen3-235B-A22B", "vllm", 3, "3 ranks do not divide the experts: `128`"),
        ("Phi-4-mini-instruct", "vllm", 2, "no experts to divide"),
        ("Llama-4-Maverick-17B-128E", "transformers", 2, "no expert-parallel plan"),
    ],
)
def test_experts_that_ranks_cannot_share_are_refused(
    load: Load, name: str, engine: Engine, ep: int, message: str
) -> None:
    with pytest.raises(SplitError, match=message):
        shapes(load(name), 1, engine, ep)


def test_layers_of_two_kinds_are_counted_apart(load: Load) -> None:
    rows = shapes(load("Llama-4-Maverick-17B-128E"), 1, "transformers")
    counts = {row.module.partition("*.")[2]: row.count for row in rows}
    assert counts["self_attn.q_proj"] == 48
    assert counts["feed_forward.gate_proj"] == counts["feed_forward.router"] == 24
    mixed = shapes(load("Qwen3.5-27B"), 8)
    assert [(r.n, r.k, r.count) for r in named(mixed, r"in_proj_(qkvz|ba)")] == [
        ((16 * 128 * 2 + 48 * 128 * 2) // 8, 5120, 48),
        (48 * 2 // 8, 5120, 48),
    ]
    (qkv,) = named(mixed, "qkv_proj")
    assert (qkv.n, qkv.count) == ((3 * 2 + 1 + 1) * 256, 16)


def block(heads: int | None, mult: float | None) -> dict[str, object]:
    return {
        "attention": {"n_heads_in_group": heads, "no_op": heads is None},
        "ffn": {"ffn_mult": mult, "no_op": mult is None},
    }


def nemotron_nas(blocks: object) -> ModelConfig:
    raw = {"architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas"}
    raw |= SMALL | {"intermediate_size": None, "block_configs": blocks}
    return parse_config(json.dumps(raw), name="nas", source="nas.json")


def test_blocks_of_nemotron_have_sizes_of_their_own() -> None:
    blocks = [block(4, 1.0), block(8, 2.0), block(4, 1.0), block(None, 6.0)]
    config = nemotron_nas([*blocks, block(4, None)])
    rows = plan_shapes(config, tp=1, engine="vllm", tokens=(8,))
    assert [(r.module.rpartition(".")[2], r.n, r.k, r.count) for r in rows] == [
        ("qkv_proj", (8 + 2 + 2) * 32, 256, 3),
        ("o_proj", 256, 256, 3),
        ("qkv_proj", (8 + 1 + 1) * 32, 256, 1),
        ("o_proj", 256, 256, 1),
        ("gate_up_proj", 2 * 256, 256, 2),
        ("down_proj", 256, 256, 2),
        ("gate_up_proj", 2 * 512, 256, 1),
        ("down_proj", 256, 512, 1),
        ("gate_up_proj", 2 * 1024, 256, 1),
        ("down_proj", 256, 1024, 1),
        ("lm_head", 1024, 256, 1),
    ]
    assert not any(row.traced for row in rows)


@pytest.mark.parametrize(
    "blocks", [None, [], [{}] * 5, [7] * 5, [block(0, 1.0)] * 5, [block(4, 1.0)] * 4]
)
def test_blocks_that_cannot_be_read_are_named(blocks: object) -> None:
    with pytest.raises(ConfigError, match=r"block_configs .*nas\.json"):
        nemotron_nas(blocks)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("DeepSeek V2", {"moe_layer_freq": 2}, "moe_layer_freq is not 1"),
        ("DeepSeek V2", {"kv_lora_rank": None}, "config lacks kv_lora_rank"),
        ("DeepSeek V2", {"first_k_dense_replace": -1}, "first_k_dense_replace is not"),
        ("Gemma 3", {"text_config": 7}, "text_config is not an object"),
        (
            "Gemma 3",
            {"text_config": {"model_type": "x"}},
            "of model_type `gemma3_text`",
        ),
        ("Qwen3 MoE, dense layers", {"mlp_only_layers": [5]}, "mlp_only_layers is not"),
        ("Qwen3 MoE, dense layers", {"num_experts": 0}, "num_experts is not from 1"),
        ("GPT-BigCode", {"multi_query": 1}, "multi_query is not true or false"),
    ],
)
def test_a_familys_own_field_at_fault_is_named(
    name: str, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        variant(name, **change)
    assert f"`{name}`" in str(caught.value)


def test_a_shared_expert_of_qwen3_moe_is_vllms_alone() -> None:
    config = variant("Qwen3 MoE, dense layers", shared_expert_intermediate_size=112)
    shared = named(shapes(config, 2), r"shared_expert\.\w+|shared_expert_gate")
    assert [(row.n, row.k, row.count) for row in shared] == [
        (112, 256, 1),
        (256, 56, 1),
        (1, 256, 1),
    ]
    assert not named(shapes(config, engine="transformers"), r"shared_expert\S*")
    assert not named(shapes(variant("Qwen3 MoE, dense layers")), r"shared_expert\S*")


def test_experts_on_a_cpu_are_padded_by_its_kernel(load: Load) -> None:
    config = variant("Qwen3 MoE, dense layers")
    for platform, w13, w2 in (("cpu", 128, 64), ("cuda", 96, 48)):
        rows = derive_shapes(
            config, tp=2, engine="vllm", tokens=(8,), platform=platform
        )
        found = named(rows, r"experts\.w(13|2)")
        assert [(row.n, row.k) for row in found] == [(w13, 256), (256, w2)]
    # gpt-oss's activation takes gate and up by turns.
    rows = derive_shapes(
        load("gpt-oss-120b"),
        tp=8,
        engine="vllm",
        tokens=(8,),
        platform="cpu",
        quant="bf16",
    )
    assert named(rows, r"experts\.w2")[0].k == 360


def test_layer_types_must_be_known() -> None:
    raw = json.loads((DATA / "configs" / "Qwen3.5-27B.json").read_text())
    raw["text_config"]["layer_types"][3] = "other"
    with pytest.raises(ConfigError, match="layer_types is not of linear_attention"):
        parse_config(json.dumps(raw), name="m", source="m.json")


def test_eager_attention_of_other_kinds_is_refused(load: Load) -> None:
    with pytest.raises(FlytuneError, match="eager attention are not known: `Deepseek"):
        derive_shapes(
            variant("DeepSeek V2"),
            tp=1,
            engine="transformers",
            tokens=(8,),
            attention="eager",
        )
