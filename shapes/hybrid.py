"""Families whose layers are of linear attention and of full attention by turns.

Source of each: transformers `models/NAME/{configuration,modeling}_NAME.py`, and where
vLLM differs, the file of its `model_executor/models/` that is named.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flytune.shapes import attention, mlp
from flytune.shapes.family import Family, Value
from flytune.shapes.fields import Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Linear, Units

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig

LAYERS = "model.layers.*"
MLP = f"{LAYERS}.mlp"


def _qwen3_5(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    """Return gated delta nets and full attention, whose q yields a gate too."""
    bias, calls = config.attention_bias, config.num_hidden_layers
    full = config.extra("full_attention_layers")
    delta = _delta_net(config, engine, calls - full) if calls > full else ()
    whole = attention.plain(
        config, engine, LAYERS, qkv_bias=bias, o_bias=bias, gated=True, count=full
    )
    return (
        *delta,
        *(whole if full else ()),
        *mlp.gated(config, engine, MLP, calls),
        *mlp.head(config, engine),
    )


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
            Linear(f"{path}.in_proj_qkvz", qkvz, wide, merged, count),
            Linear(f"{path}.in_proj_ba", ba, wide, merged, count),
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
    full = count // every if types is None else types.count("full_attention")
    names = (
        *("linear_num_key_heads", _VALUE_HEADS),
        *("linear_key_head_dim", "linear_value_head_dim"),
    )
    return {name: fields.size(name) for name in names} | {"full_attention_layers": full}


HYBRIDS = (
    Family(
        "Qwen3_5ForConditionalGeneration",
        ("qwen3_5",),
        _qwen3_5,
        kv_heads=4,
        head_dim=256,
        read=_qwen3_5_fields,
        nested="qwen3_5_text",
        eager=False,
    ),
)
