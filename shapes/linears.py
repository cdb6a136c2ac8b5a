"""The linear layers of a dense decoder, whole: no rank split, nothing fused.

Source of the layout: transformers `models/{llama,mistral,qwen2,qwen3}/modeling_*.py`,
which the trace checks for every model planned.
"""

from dataclasses import dataclass
from enum import Enum

from flytune.shapes.families import BiasRule
from flytune.shapes.gemm import Engine
from flytune.shapes.model_config import ModelConfig


class Split(Enum):
    """What tensor-parallel ranks divide of a linear: config field, unit, side."""

    _value_: tuple[str, str, str]

    HEADS = ("num_attention_heads", "heads", "columns")
    KV_HEADS = ("num_key_value_heads", "kv heads", "columns")
    COLUMNS = ("intermediate_size", "intermediate features", "columns")
    VOCABULARY = ("vocab_size", "vocabulary entries", "columns")
    HEAD_ROWS = ("num_attention_heads", "heads", "rows")
    ROWS = ("intermediate_size", "intermediate features", "rows")

    @property
    def field(self) -> str:
        return self.value[0]

    @property
    def unit(self) -> str:
        return self.value[1]

    @property
    def by_rows(self) -> bool:
        """True where the input features are divided, False where the output ones."""
        return self.value[2] == "rows"


@dataclass(frozen=True, slots=True)
class Linear:
    """`X [m, in_features] @ W.T` with W [out_features, in_features]."""

    module: str
    out_features: int
    in_features: int
    bias: bool
    split: Split
    count: int
    """Calls in one forward pass of the whole model."""
    fused: str = ""
    """The layer that vLLM merges it into, such as "qkv_proj"; "" if it stays apart."""


def decoder_linears(config: ModelConfig, engine: Engine) -> tuple[Linear, ...]:
    """List the linears in the order a forward pass calls them.

    `engine` decides the biases alone. The head is last and runs for every token.
    """
    family = config.family
    o_rule = family.vllm_o_bias if engine == "vllm" else family.o_bias
    qkv_bias, o_bias, mlp_bias = (
        _has_bias(config, rule) for rule in (family.qkv_bias, o_rule, family.mlp_bias)
    )
    hidden, inner = config.hidden_size, config.intermediate_size
    q = config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    attention, mlp = "model.layers.*.self_attn", "model.layers.*.mlp"
    layers, qkv, gate_up = config.num_hidden_layers, "qkv_proj", "gate_up_proj"
    heads, kv_heads, columns = Split.HEADS, Split.KV_HEADS, Split.COLUMNS
    return (
        Linear(f"{attention}.q_proj", q, hidden, qkv_bias, heads, layers, qkv),
        Linear(f"{attention}.k_proj", kv, hidden, qkv_bias, kv_heads, layers, qkv),
        Linear(f"{attention}.v_proj", kv, hidden, qkv_bias, kv_heads, layers, qkv),
        Linear(f"{attention}.o_proj", hidden, q, o_bias, Split.HEAD_ROWS, layers),
        Linear(f"{mlp}.gate_proj", inner, hidden, mlp_bias, columns, layers, gate_up),
        Linear(f"{mlp}.up_proj", inner, hidden, mlp_bias, columns, layers, gate_up),
        Linear(f"{mlp}.down_proj", hidden, inner, mlp_bias, Split.ROWS, layers),
        Linear("lm_head", config.vocab_size, hidden, False, Split.VOCABULARY, 1),
    )


def _has_bias(config: ModelConfig, rule: BiasRule) -> bool:
    if rule == "attention_bias":
        return config.attention_bias
    if rule == "mlp_bias":
        return config.mlp_bias
    return rule
