"""What real configs say that no small variant of a family does, worked out by hand."""

import json
from collections.abc import Callable

import pytest
from family_variants import named

from flytune.shapes.derive import derive_shapes
from flytune.shapes.fields import ConfigError
from flytune.shapes.model_config import ModelConfig, parse_config
from flytune.shapes.plan import plan_shapes

Load = Callable[[str], ModelConfig]
Row = tuple[int, int, int, str | None]
"""n, k, count and scheme."""


def rows_of(config: ModelConfig, pattern: str, tp: int) -> list[Row]:
    rows = derive_shapes(config, tp=tp, engine="vllm", tokens=(8,))
    return [(r.n, r.k, r.count, r.scaling) for r in named(rows, pattern)]


@pytest.mark.parametrize(
    ("name", "tp", "module", "expected"),
    [
        # 64 heads of 128 + 64 and a rank of 1536; 384 experts of 2048, 1 dense layer.
        ("Kimi-K2-Instruct", 8, "q_b_proj", [(1536, 1536, 61, "block128")]),
        ("Kimi-K2-Instruct", 8, "o_proj", [(7168, 1024, 61, "block128")]),
        ("Kimi-K2-Instruct", 8, r"experts\.w13", [(512, 7168, 60, "block128")]),
        # The same in four bits, of the experts alone.
        ("Kimi-K2.5", 8, "o_proj", [(7168, 1024, 61, None)]),
        ("Kimi-K2.5", 8, r"experts\.w2", [(7168, 256, 60, "gptq")]),
        ("Kimi-K2.5", 8, r"shared_experts\.down_proj", [(7168, 256, 60, None)]),
        ("Kimi-K2.6-NVFP4", 8, r"experts\.w13", [(512, 7168, 60, "nvfp4")]),
        ("Kimi-K2.6-NVFP4", 8, "o_proj", [(7168, 1024, 61, None)]),
        # 40 heads and 8 of keys, of 128; each layer a mixture of 16 experts of 8192.
        ("Llama-4-Scout-17B-16E", 8, "qkv_proj", [(896, 5120, 48, None)]),
        ("Llama-4-Scout-17B-16E", 8, r"experts\.w13", [(2048, 5120, 48, None)]),
        ("Llama-4-Scout-17B-16E", 8, "lm_head", [(25256, 5120, 1, None)]),
        # Keys are picked anew in layers 0 to 2, and then in each fourth from 6 on.
        ("GLM-5.2", 8, r"indexer\.wq_b", [(4096, 2048, 21, None)]),
        ("GLM-5.2", 8, "o_proj", [(6144, 2048, 78, None)]),
        # 30 delta nets of 16 and 32 heads of 128, 10 layers of 16 heads of 256, gated.
        ("Qwen3.5-35B-A3B", 1, "in_proj_qkvz", [(12288, 2048, 30, None)]),
        ("Qwen3.5-35B-A3B", 1, "qkv_proj", [(9216, 2048, 10, None)]),
        ("Qwen3.5-35B-A3B", 1, r"experts\.w13", [(1024, 2048, 40, None)]),
        # As many heads of keys as of queries.
        ("Llama-2-7B", 8, "qkv_proj", [(1536, 4096, 32, None)]),
        ("Llama-2-7B", 8, "gate_up_proj", [(2752, 4096, 32, None)]),
        ("Llama-2-7B", 8, "lm_head", [(4000, 4096, 1, None)]),
        # 128 heads of 128 + 64 and a rank of 1536; 160 experts of 1536, 2 of all.
        ("DeepSeek-Coder-V2-Instruct", 8, "fused_qkv_a_proj", [(2112, 5120, 60, None)]),
        ("DeepSeek-Coder-V2-Instruct", 8, "q_b_proj", [(3072, 1536, 60, None)]),
        ("DeepSeek-Coder-V2-Instruct", 8, "kv_b_proj", [(4096, 512, 60, None)]),
        ("DeepSeek-Coder-V2-Instruct", 8, "o_proj", [(5120, 2048, 60, None)]),
        ("DeepSeek-Coder-V2-Instruct", 8, r"experts\.w13", [(384, 5120, 59, None)]),
        (
            *("DeepSeek-Coder-V2-Instruct", 8, r"shared_experts\.gate_up_proj"),
            [(768, 5120, 59, None)],
        ),
        # No rank of queries: 16 heads of 192 from the hidden state itself.
        (
            *("DeepSeek-Coder-V2-Lite-Instruct", 1, "kv_a_proj_with_mqa"),
            [(576, 2048, 27, None)],
        ),
        (
            *("DeepSeek-Coder-V2-Lite-Instruct", 1, r"self_attn\.q_proj"),
            [(3072, 2048, 27, None)],
        ),
        (
            *("DeepSeek-Coder-V2-Lite-Instruct", 1, r"\.mlp\.gate_up_proj"),
            [(21888, 2048, 1, None)],
        ),
        # Heads of 256 and the vocabulary are its class's.
        ("Gemma-3-12B-it", 4, "qkv_proj", [(2048, 3840, 48, None)]),
        ("Gemma-3-12B-it", 4, "lm_head", [(65552, 3840, 1, None)]),
        # 48 heads of 128 and one of keys.
        ("StarCoder", 1, "c_attn", [(6400, 6144, 40, None)]),
        ("StarCoder", 1, "c_fc", [(24576, 6144, 40, None)]),
        # vLLM splits what transformers' plan does, and attention: here it has no plan.
        ("StarCoder", 2, r"model\.h\.\*\.attn\.c_attn", [(3328, 6144, 40, None)]),
        ("StarCoder", 2, r"model\.h\.\*\.mlp\.c_fc", [(24576, 6144, 40, None)]),
        ("StarCoder", 2, r"model\.h\.\*\.mlp\.c_proj", [(6144, 24576, 40, None)]),
        ("StarCoder2-3B", 2, "qkv_proj", [(1792, 3072, 30, None)]),
        ("StarCoder2-3B", 2, "c_fc", [(6144, 3072, 30, None)]),
        # 70 layers of lightning attention, 10 of 64 heads and 8 of keys.
        (
            *("MiniMax-Text-01", 8, "qkv_proj"),
            [(3072, 6144, 70, None), (1280, 6144, 10, None)],
        ),
        ("MiniMax-Text-01", 8, r"experts\.w13", [(2304, 6144, 80, None)]),
        # 1536 features of an expert over 8 ranks are no whole blocks of 128.
        ("MiniMax-M2.5", 8, "qkv_proj", [(1024, 3072, 62, "block128")]),
        ("MiniMax-M2.5", 4, r"experts\.w13", [(768, 3072, 62, "block128")]),
        ("MiniMax-M2.5", 8, r"experts\.w13", [(384, 3072, 62, "block64")]),
    ],
)
def test_rows_of_real_checkpoints(
    load: Load, name: str, tp: int, module: str, expected: list[Row]
) -> None:
    assert rows_of(load(name), module, tp) == expected


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ({}, 21),
        ({"indexer_types": None}, 21),
        ({"indexer_types": None, "index_topk_freq": None}, 78),
        ({"indexer_types": None, "index_topk_pattern": "F" + "S" * 77}, 1),
    ],
)
def test_layers_that_pick_keys_anew_are_told_in_three_ways(
    load: Load, said: dict[str, object], count: int
) -> None:
    raw = json.loads(load("GLM-5.2").raw) | said
    text = json.dumps({name: value for name, value in raw.items() if value is not None})
    config = parse_config(text, name="GLM", source="GLM")
    assert rows_of(config, r"indexer\.wq_b", 1) == [(4096, 2048, count, None)]
    rows = plan_shapes(config, tp=1, engine="transformers", tokens=(8,))
    assert {row.traced for row in rows} == {True}


def test_a_pattern_of_layers_that_is_none(load: Load) -> None:
    raw = json.loads(load("GLM-5.2").raw)
    raw |= {"indexer_types": None, "index_topk_pattern": "FFX"}
    with pytest.raises(ConfigError, match="index_topk_pattern is not 78 of F and S"):
        parse_config(json.dumps(raw), name="GLM", source="GLM")


def test_nemotron_has_layers_without_attention_and_mlps_of_many_sizes(
    load: Load,
) -> None:
    config = load("Llama-3.3-Nemotron-Super-49B")
    attention = rows_of(config, "qkv_proj", 8)
    assert attention == [(1280, 8192, 49, None)]
    mlps = rows_of(config, r"mlp\.gate_up_proj", 8)
    assert sum(count for _, _, count, _ in mlps) == 80
    assert all(k == 8192 for _, k, _, _ in mlps)
