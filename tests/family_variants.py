"""Small models of families, for what no config in `data/configs` says."""

import json
import re
from collections.abc import Mapping
from typing import Any

from flytune.shapes.derive import derive_shapes
from flytune.shapes.gemm import Engine, GemmShape
from flytune.shapes.model_config import ModelConfig, parse_config

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 600,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1003,
    "pad_token_id": 0,
}
LATENT = {
    **SMALL,
    "num_key_value_heads": 8,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "n_routed_experts": 16,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 80,
    "n_shared_experts": 2,
    "first_k_dense_replace": 2,
    "n_group": 2,
    "topk_group": 1,
}
BIGCODE = {"n_embd": 256, "n_head": 8, "n_layer": 5, "vocab_size": 1003}
FALCON = {
    "hidden_size": 256,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "vocab_size": 1003,
}
EXPERTS = {"num_local_experts": 16, "num_experts_per_tok": 4, "head_dim": 32}
DELTA = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
GEMMA3_4B = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
}
# Gemma 3's is the 4B's own, which omits sizes.
VARIANTS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "Gemma 2": ("Gemma2ForCausalLM", "gemma2", {**SMALL, "head_dim": 64}),
    "Gemma 3 text": ("Gemma3ForCausalLM", "gemma3_text", {**SMALL, "head_dim": 64}),
    "Gemma 3": (
        "Gemma3ForConditionalGeneration",
        "gemma3",
        {"text_config": GEMMA3_4B, "torch_dtype": "bfloat16"},
    ),
    "GLM 4": ("Glm4ForCausalLM", "glm4", {**SMALL, "head_dim": 32}),
    "StarCoder2": ("Starcoder2ForCausalLM", "starcoder2", SMALL),
    "StarCoder2, no bias": (
        "Starcoder2ForCausalLM",
        "starcoder2",
        {**SMALL, "use_bias": False},
    ),
    "Nemotron": ("NemotronForCausalLM", "nemotron", SMALL),
    "Nemotron, biases": (
        "NemotronForCausalLM",
        "nemotron",
        {**SMALL, "attention_bias": True, "mlp_bias": True},
    ),
    "Falcon, one kv head": ("FalconForCausalLM", "falcon", FALCON),
    "Falcon, all": ("FalconForCausalLM", "falcon", {**FALCON, "multi_query": False}),
    "Falcon, new": (
        "FalconForCausalLM",
        "falcon",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "GPT-BigCode": ("GPTBigCodeForCausalLM", "gpt_bigcode", BIGCODE),
    "GPT-BigCode, all": (
        "GPTBigCodeForCausalLM",
        "gpt_bigcode",
        {**BIGCODE, "multi_query": False, "n_inner": 700},
    ),
    "Llama 4 text": (
        "Llama4ForCausalLM",
        "llama4_text",
        {**SMALL, **EXPERTS, "intermediate_size_mlp": 1200, "moe_layers": [0, 3]},
    ),
    "Qwen 3.5 text": (
        "Qwen3_5ForCausalLM",
        "qwen3_5_text",
        {**SMALL, **DELTA, "full_attention_interval": 2},
    ),
    "Qwen 3.5 MoE text": (
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        {
            **SMALL,
            **DELTA,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 80,
            "shared_expert_intermediate_size": 112,
        },
    ),
    "MiniMax": (
        "MiniMaxForCausalLM",
        "minimax",
        {**SMALL, **EXPERTS, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "Qwen 3.5 MoE": (
        "Qwen3_5MoeForConditionalGeneration",
        "qwen3_5_moe",
        {
            "text_config": {
                **SMALL,
                "intermediate_size": None,
                **DELTA,
                "num_experts": 16,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 80,
                "shared_expert_intermediate_size": 112,
                "layer_types": ["full_attention"] + ["linear_attention"] * 4,
            }
        },
    ),
    "MiniMax M2": ("MiniMaxM2ForCausalLM", "minimax_m2", {**SMALL, **EXPERTS}),
    "DeepSeek V2": ("DeepseekV2ForCausalLM", "deepseek_v2", LATENT),
    "DeepSeek V2 Lite": (
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        {**LATENT, "q_lora_rank": None},
    ),
    "DeepSeek V3, biases": (
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        {**LATENT, "attention_bias": True},
    ),
    "Qwen3 MoE, dense layers": (
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        {
            **SMALL,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 96,
            "mlp_only_layers": [1],
            "decoder_sparse_step": 2,
        },
    ),
    "gpt-oss, no bias": (
        "GptOssForCausalLM",
        "gpt_oss",
        {**SMALL, **EXPERTS, "attention_bias": False},
    ),
    "Llama 4 Scout": (
        "Llama4ForConditionalGeneration",
        "llama4",
        {"text_config": {**SMALL, **EXPERTS, "intermediate_size_mlp": 1200}},
    ),
}


def variant(name: str, **changes: object) -> ModelConfig:
    architecture, model_type, fields = VARIANTS[name]
    raw = {"architectures": [architecture], "model_type": model_type} | fields
    return parse_config(json.dumps(raw | changes), name=name, source=name)


def shapes(
    config: ModelConfig, tp: int = 1, engine: Engine = "vllm", ep: int = 1
) -> tuple[GemmShape, ...]:
    return derive_shapes(config, tp=tp, ep=ep, engine=engine, tokens=(8,), quant="bf16")


def named(rows: tuple[GemmShape, ...], pattern: str) -> list[GemmShape]:
    """Return the rows whose module ends as `pattern` says."""
    return [row for row in rows if re.search(f"{pattern}$", row.module)]
