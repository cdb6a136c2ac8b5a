"""Real configs cut small, and those of classes where no real one is at hand.

A real config keeps all its fields but those that are cut here: sizes, layers, and what
says that it is quantised.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
_QUANTISED = ("quantization_config", "auto_map")

# Attention on a CPU has kernels for heads of 32; the vocabulary is padded.
_CUT: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 608,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1003,
    "max_position_embeddings": 1024,
}
_EXPERTS = {"num_local_experts": 16, "num_experts_per_tok": 4}
# The sizes of its heads are those of every real config: a kernel takes no others.
_LATENT = {
    **{key: value for key, value in _CUT.items() if key != "head_dim"},
    "num_hidden_layers": 3,
    "num_key_value_heads": 8,
    "first_k_dense_replace": 1,
    "n_routed_experts": 16,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 96,
}
_LATENT_ALONE = {**_LATENT, "n_group": 1}
_DELTA = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_SHARED = {
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 160,
}


def _real(name: str, cut: Mapping[str, Any]) -> dict[str, Any]:
    raw = json.loads((CONFIGS / f"{name}.json").read_text())
    return {k: v for k, v in raw.items() if k not in _QUANTISED} | cut


def _text(name: str, architecture: str, cut: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text model of a config that also sees."""
    raw = json.loads((CONFIGS / f"{name}.json").read_text())["text_config"]
    return {**raw, "architectures": [architecture], **cut}


def _class(
    architecture: str, model_type: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    own = {"architectures": [architecture], "model_type": model_type}
    return {**own, "torch_dtype": "bfloat16", **fields}


_FALCON = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": 1003,
    "parallel_attn": True,
    "bias": False,
    "alibi": False,
}
MODELS: Mapping[str, dict[str, Any]] = {
    "DeepSeek V3": _real("DeepSeek-V3", {**_LATENT, "q_lora_rank": 96}),
    "DeepSeek V2": _real("DeepSeek-Coder-V2-Instruct", {**_LATENT, "q_lora_rank": 96}),
    "DeepSeek V2 Lite": _real("DeepSeek-Coder-V2-Lite-Instruct", _LATENT_ALONE),
    "Mixtral": _real("Mixtral-8x7B", {**_CUT, "num_local_experts": 8}),
    "Qwen3 MoE": _real(
        "Qwen3-30B-A3B",
        {
            **_CUT,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 96,
        },
    ),
    "Qwen3 MoE, shared expert": _real("Qwen3-30B-A3B", {**_CUT, **_SHARED}),
    "GLM 4.5": _real(
        "GLM-4.5-Air",
        {
            **_CUT,
            "n_routed_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 96,
        },
    ),
    "gpt-oss": _real(
        "gpt-oss-120b",
        {**_CUT, **_EXPERTS, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "MiniMax M2": _real(
        "MiniMax-M2.5",
        {**_CUT, **_EXPERTS, "rotary_dim": 16, "scoring_func": "softmax"},
    ),
    "Qwen 3.5": _text(
        "Qwen3.5-27B", "Qwen3_5ForCausalLM", {**_CUT, **_DELTA, "head_dim": 256}
    ),
    "Qwen 3.5 MoE": _text(
        "Qwen3.5-35B-A3B",
        "Qwen3_5MoeForCausalLM",
        {**_CUT, **_DELTA, **_SHARED, "head_dim": 256},
    ),
    "Llama 4": _text(
        "Llama-4-Scout-17B-16E",
        "Llama4ForCausalLM",
        {**_CUT, **_EXPERTS, "num_experts_per_tok": 1, "intermediate_size_mlp": 1216},
    ),
    "Llama 4, dense layers": _text(
        "Llama-4-Maverick-17B-128E",
        "Llama4ForCausalLM",
        {**_CUT, **_EXPERTS, "num_experts_per_tok": 1, "intermediate_size_mlp": 1216},
    ),
    "Llama 3.1": _real("Llama-3.1-405B", {**_CUT}),
    "Mistral": _real("Mistral-7B-Instruct-v0.3", _CUT),
    "Qwen 2.5": _real("Qwen2.5-7B-Instruct", _CUT),
    "Qwen3": _real("Qwen3-8B", _CUT),
    "Gemma 2": _real("Gemma-2-27B", {**_CUT, "query_pre_attn_scalar": 32}),
    "Gemma 3": _text("Gemma-3-12B-it", "Gemma3ForCausalLM", _CUT),
    "Phi 3": _real("Phi-3.5-mini-instruct", {**_CUT, "rope_scaling": None}),
    # Three quarters of a head are rotated, of which a kernel takes whole vectors.
    "Phi 4 mini": _real(
        "Phi-4-mini-instruct",
        {
            **_CUT,
            **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128},
            "rope_scaling": None,
        },
    ),
    "GLM 4": _class("Glm4ForCausalLM", "glm4", {**_CUT, "attention_bias": True}),
    "StarCoder2": _real("StarCoder2-3B", _CUT),
    "Nemotron": _class("NemotronForCausalLM", "nemotron", _CUT),
    "Falcon 7B": _class("FalconForCausalLM", "falcon", _FALCON),
    "Falcon 7B, all heads": _class(
        "FalconForCausalLM", "falcon", {**_FALCON, "multi_query": False}
    ),
    "Falcon 40B": _class(
        "FalconForCausalLM",
        "falcon",
        {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "GPT-BigCode": _real(
        "StarCoder",
        {
            **{"n_embd": 256, "n_head": 8, "n_layer": 2, "n_inner": 700},
            **{"vocab_size": 1003, "n_positions": 1024},
        },
    ),
}
REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "DeepSeek V3.2": (
        _real("DeepSeek-V3.2", {**_LATENT, "q_lora_rank": 96}),
        "Sparse Attention is not supported on CPU.",
    ),
    "GLM 5": (
        _real("GLM-5", {**_LATENT, "q_lora_rank": 96}),
        "Sparse Attention is not supported on CPU.",
    ),
    "Falcon, first spelling": (
        _real("Falcon-7B", {"n_layer": 2}),
        "Model architecture RWForCausalLM was supported in vLLM until v0.28.0, and is "
        "not supported anymore.",
    ),
    "MiniMax Text 01": (
        _real(
            "MiniMax-Text-01",
            {
                **_CUT,
                **_EXPERTS,
                "layer_types": ["full_attention", "linear_attention"],
            },
        ),
        "Layer 1 (linear_attention) does not dispatch through the Transformers "
        "attention interface and vLLM has no other way to handle it.",
    ),
    "Nemotron Super": (
        _real("Llama-3.3-Nemotron-Super-49B", {}),
        "has model type `nemotron-nas` but Transformers does not recognize this "
        "architecture.",
    ),
    "MiniMax M2, sigmoid": (
        _real("MiniMax-M2.5", {**_CUT, **_EXPERTS, "rotary_dim": 16}),
        'assert self.scoring_func == "softmax"',
    ),
}
"""Those that it does not run on a CPU, with its words."""
