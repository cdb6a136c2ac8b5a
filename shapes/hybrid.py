"""Families whose layers are of linear attention and of full attention by turns.

Source of each: transformers `models/NAME/{configuration,modeling}_NAME.py`, and where
vLLM differs, the file of its `model_executor/models/` that is named.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from flytune.shapes import attention, mlp
from flytune.shapes.family import Family, Value, text_alone
from flytune.shapes.fields import Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Linear, Units, in_layers
from flytune.shapes.mlp import Mixture

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig

LAYERS = "model.layers.*"
MLP = f"{LAYERS}.mlp"


def _qwen3_5(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    """Return gated delta nets and full attention, whose q yields a gate too."""
    bias, full, linear = config.attention_bias, *_by_attention(config)
    delta = _delta_net(config, engine, len(linear))
    whole = attention.plain(
        config, engine, LAYERS, qkv_bias=bias, o_bias=bias, gated=True
    )
    return (
        *(in_layers(linear, delta) if linear else ()),
        *(in_layers(full, whole) if full else ()),
        *_second_half(config, engine),
        *mlp.head(config, engine),
    )


def _by_attention(
    config: "ModelConfig",
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the layers of full attention and those of linear attention."""
    full = config.rows("full_attention_layers")
    return full, tuple(sorted(set(range(config.num_hidden_layers)) - set(full)))


def _second_half(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    calls, size = config.num_hidden_layers, "moe_intermediate_size"
    if not config.extra("num_experts"):
        return mlp.gated(config, engine, MLP, calls)
    moe = Mixture(
        config.extra("num_experts"),
        config.extra("num_experts_per_tok"),
        config.extra(size),
        size,
        shared=config.extra("shared_expert_intermediate_size"),
        shared_name="shared_expert",
        shared_gate="shared_expert_gate",
    )
    return mlp.mixture(config, engine, MLP, calls, moe)


def _delta_net(config: "ModelConfig", engine: Engine, count: int) -> tuple[Linear, ...]:
    """Return the linears of a gated delta net; what is between them is a kernel.

    Source of vLLM's: `layers/mamba/gdn_linear_attn.py`.
    """
    path, wide = f"{LAYERS}.linear_attn", attention.hidden(config)
    keys, values = config.extra("linear_num_key_heads"), config.extra(_VALUE_HEADS)
    size, out = (
        config.extra("linear_key_head_dim"),
        config.extra("linear_value_head_dim"),
    )

    def key(label: str = "") -> Units:
        return Units(keys, "linear_num_key_heads", "key heads", size, label)

    def value(label: str = "", each: int = out) -> Units:
        return Units(values, _VALUE_HEADS, "value heads", each, label)

    if engine == "vllm":
        merged = "MergedColumnParallelLinear"
        qkvz = (key("q"), key("k"), value("v"), value("z"))
        ba = (value("b", 1), value("a", 1))
        return (
            Linear(
                f"{path}.in_proj_qkvz",
                qkvz,
                wide,
                merged,
                count,
                parts=("in_proj_qkv", "in_proj_z"),
            ),
            Linear(
                f"{path}.in_proj_ba",
                ba,
                wide,
                merged,
                count,
                parts=("in_proj_b", "in_proj_a"),
            ),
            Linear(f"{path}.out_proj", (wide,), value(), "RowParallelLinear", count),
        )
    style, qkv = "colwise_gather_output", 2 * keys * size + values * out
    packed = (Units(qkv, "in_proj_qkv features"),)
    width = Units(config.hidden_size, "hidden_size", "output features")
    return (
        Linear(f"{path}.in_proj_qkv", packed, wide, style, count),
        Linear(f"{path}.in_proj_z", (value(),), wide, style, count),
        Linear(f"{path}.in_proj_b", (value("", 1),), wide, style, count),
        Linear(f"{path}.in_proj_a", (value("", 1),), wide, style, count),
        Linear(f"{path}.out_proj", (width,), value(), style, count),
    )


_VALUE_HEADS = "linear_num_value_heads"


def _qwen3_5_fields(fields: Fields) -> Mapping[str, Value]:
    count = fields.size("num_hidden_layers")
    types = fields.types("layer_types", count, ("linear_attention", "full_attention"))
    every = fields.size("full_attention_interval", default=4)
    full = tuple(range(every - 1, count, every)) if types is None else _full(types)
    names = (
        *("linear_num_key_heads", _VALUE_HEADS),
        *("linear_key_head_dim", "linear_value_head_dim"),
    )
    return {name: fields.size(name) for name in names} | {
        "full_attention_layers": full,
        "num_experts": 0,
    }


def _full(types: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(i for i, each in enumerate(types) if each == "full_attention")


def _qwen3_5_moe_fields(fields: Fields) -> Mapping[str, Value]:
    names = (
        *("num_experts", "num_experts_per_tok"),
        *("moe_intermediate_size", "shared_expert_intermediate_size"),
    )
    return {**_qwen3_5_fields(fields)} | {name: fields.size(name) for name in names}


def _minimax(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    """Return lightning attention and full attention, each with a mixture.

    Source of vLLM's: `models/minimax_text_01.py`.
    """
    full, linear = _by_attention(config)
    calls = config.num_hidden_layers
    moe = Mixture(
        config.extra("num_local_experts"),
        config.extra("num_experts_per_tok"),
        config.intermediate_size,
        "intermediate_size",
        router_dtypes=("", "float32"),
    )
    path = f"{LAYERS}.block_sparse_moe" if engine == "vllm" else MLP
    lightning = _lightning(config, engine, len(linear))
    whole = attention.plain(config, engine, LAYERS)
    return (
        *(in_layers(linear, lightning) if linear else ()),
        *(in_layers(full, whole) if full else ()),
        *mlp.mixture(config, engine, path, calls, moe),
        *mlp.head(config, engine),
    )


def _lightning(config: "ModelConfig", engine: Engine, count: int) -> tuple[Linear, ...]:
    path, wide = f"{LAYERS}.self_attn", attention.hidden(config)
    heads, field = config.num_attention_heads, "num_attention_heads"
    vllm = engine == "vllm"
    up = "ColumnParallelLinear" if vllm else "replicated"
    down = "RowParallelLinear" if vllm else "replicated"
    qkv = Units(heads, field, "linear heads", 3 * config.head_dim)
    one = Units(heads, field, "linear heads", config.head_dim)
    return (
        Linear(f"{path}.qkv_proj", (qkv,), wide, up, count),
        Linear(f"{path}.output_gate", (one,), wide, up, count),
        Linear(f"{path}.out_proj", (wide,), one, down, count),
    )


def _minimax_fields(fields: Fields) -> Mapping[str, Value]:
    count = fields.size("num_hidden_layers")
    types = fields.types("layer_types", count, ("linear_attention", "full_attention"))
    # transformers' class takes the first layer, the third and so on as full.
    full = tuple(range(0, count, 2)) if types is None else _full(types)
    names = ("num_local_experts", "num_experts_per_tok")
    return {name: fields.size(name) for name in names} | {"full_attention_layers": full}


_QWEN3_5 = Family(
    "Qwen3_5ForConditionalGeneration",
    ("qwen3_5",),
    _qwen3_5,
    kv_heads=4,
    head_dim=256,
    read=_qwen3_5_fields,
    nested=("qwen3_5_text",),
    eager=False,
)
_QWEN3_5_MOE = replace(
    _QWEN3_5,
    architecture="Qwen3_5MoeForConditionalGeneration",
    model_types=("qwen3_5_moe",),
    kv_heads=2,
    read=_qwen3_5_moe_fields,
    nested=("qwen3_5_moe_text",),
    # Each layer has experts; the size of a dense MLP is of none.
    inner=1,
)
HYBRIDS = (
    _QWEN3_5,
    text_alone(_QWEN3_5, "Qwen3_5ForCausalLM"),
    _QWEN3_5_MOE,
    text_alone(_QWEN3_5_MOE, "Qwen3_5MoeForCausalLM"),
    Family(
        "MiniMaxForCausalLM",
        ("minimax",),
        _minimax,
        kv_heads=8,
        read=_minimax_fields,
        eager=False,
    ),
)
