"""The model families whose GEMMs are known, one row each.

A family is added by a row here and is never guessed: an architecture without a row
is an error. Every rule below is read from transformers (`configuration_*.py` for
the defaults, `modeling_*.py` for the biases) and, where vLLM differs, from its
`model_executor/models/*.py`.
"""

from dataclasses import dataclass
from typing import Literal

BiasRule = bool | Literal["attention_bias", "mlp_bias"]
"""Whether a linear has a bias: always, never, or as this config field says."""


@dataclass(frozen=True, slots=True)
class Family:
    """What a dense decoder family takes from its config, and its defaults."""

    architecture: str
    """The entry of the config's `architectures`."""
    model_type: str
    """The config's `model_type`."""
    kv_heads: int | None
    """`num_key_value_heads` where the config omits it; None: the attention heads."""
    head_dim: int | None
    """`head_dim` where the config omits it; None: hidden_size / attention heads."""
    qkv_bias: BiasRule
    o_bias: BiasRule
    vllm_o_bias: BiasRule
    """vLLM's output projection, which need not follow transformers'."""
    mlp_bias: BiasRule
    free_head_dim: bool = True
    """False where vLLM always takes hidden_size / attention heads for `head_dim`."""


FAMILIES = (
    Family(
        architecture="LlamaForCausalLM",
        model_type="llama",
        kv_heads=None,
        head_dim=None,
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        vllm_o_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    Family(
        architecture="MistralForCausalLM",
        model_type="mistral",
        kv_heads=8,
        head_dim=None,
        qkv_bias=False,
        o_bias=False,
        vllm_o_bias=False,
        mlp_bias=False,
    ),
    Family(
        architecture="Qwen2ForCausalLM",
        model_type="qwen2",
        kv_heads=32,
        head_dim=None,
        qkv_bias=True,
        o_bias=False,
        vllm_o_bias=False,
        mlp_bias=False,
        free_head_dim=False,
    ),
    Family(
        architecture="Qwen3ForCausalLM",
        model_type="qwen3",
        kv_heads=32,
        head_dim=128,
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        vllm_o_bias=False,
        mlp_bias=False,
    ),
)

BY_ARCHITECTURE = {family.architecture: family for family in FAMILIES}
