"""Configs of small decoders, each of another architecture."""

from typing import Any

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 256,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_LATENT = {"q_lora_rank": 32, "kv_lora_rank": 16, "v_head_dim": 16}
_ROTARY = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
TINY: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        **{**_SIZES, "num_key_value_heads": 4, "first_k_dense_replace": 1},
        **{"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2},
        **{"topk_group": 1, "moe_intermediate_size": 32, **_LATENT, **_ROTARY},
    },
    "falcon": {**_SIZES, "pad_token_id": 0},
    "gemma2": {**_SIZES, "head_dim": 16, "sliding_window": 4},
    "gemma3_text": {**_SIZES, "head_dim": 16, "sliding_window": 4},
    "gpt_oss": {**_SIZES, **_EXPERTS, "head_dim": 16, "sliding_window": 4},
    "granite": _SIZES,
    "mixtral": {**_SIZES, **_EXPERTS},
    "olmo2": _SIZES,
    "phi3": {**_SIZES, "pad_token_id": 0},
    "qwen3_moe": {**_SIZES, "num_experts": 4, "num_experts_per_tok": 2},
}
TINY = {name: {"model_type": name, **config} for name, config in TINY.items()}
KINDS = {
    "deepseek_v3": ("layer 0", "layer 1"),
    "gemma2": ("layer 0", "layer 1"),
    "gpt_oss": ("layer 0", "layer 1"),
}
"""Of layers, where they are several."""
NO_SDPA = ("gemma2", "gpt_oss")
"""Those whose attention transformers has in no kernel of torch's."""
