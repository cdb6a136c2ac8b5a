"""Families with multi-head latent attention and a mixture of experts.

Source of each: transformers `models/NAME/{configuration,modeling}_NAME.py`, and where
vLLM differs, the file of its `model_executor/models/` that is named.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flytune.shapes import attention, mlp
from flytune.shapes.family import Family, Value
from flytune.shapes.fields import Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Linear, in_layers
from flytune.shapes.moe import dense_then_sparse, sparse_fields

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig

LAYERS = "model.layers.*"


def _latent(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    """DeepSeek V3's attention is in no plan of transformers; V2's is, and V3.2's."""
    in_plan = config.model_type not in ("deepseek_v3", "kimi_k2")
    bias = config.attention_bias
    sparse_keys = config.extra("index_n_heads") > 0
    mla = attention.mla(config, engine, LAYERS, in_plan=in_plan, a_bias=bias)
    picks = _picks(config, engine) if sparse_keys else ()
    return (
        *mla[:-1],
        *picks,
        mla[-1],
        *dense_then_sparse(config, engine),
        *mlp.head(config, engine),
    )


def _picks(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    """Return the indexer, in the layers that have one of their own."""
    indexed = config.rows("indexed_layers")
    linears = attention.indexer(config, engine, LAYERS)
    if len(indexed) == config.num_hidden_layers:
        return linears
    return in_layers(indexed, linears) if indexed else ()


def _latent_fields(fields: Fields) -> Mapping[str, Value]:
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    # Null where q has no low rank; absent would be the class's 1536.
    rank = fields.size(
        "q_lora_rank", default=0 if "q_lora_rank" in fields.raw else None
    )
    return {
        **{name: fields.size(name) for name in names},
        "q_lora_rank": rank,
        "index_n_heads": 0,
        **sparse_fields(fields),
    }


def _indexed_fields(fields: Fields) -> Mapping[str, Value]:
    names = ("index_n_heads", "index_head_dim")
    count = fields.size("num_hidden_layers")
    return {
        **_latent_fields(fields),
        **{name: fields.size(name) for name in names},
        "indexed_layers": tuple(range(count)),
    }


def _glm_fields(fields: Fields) -> Mapping[str, Value]:
    return {**_indexed_fields(fields), "indexed_layers": _indexed(fields)}


def _indexed(fields: Fields) -> tuple[int, ...]:
    """Return the layers that pick keys anew; the others take an earlier layer's.

    Source: `GlmMoeDsaConfig.__post_init__`; vLLM's `models/deepseek_v32/attention.py`
    has the same rule for its `skip_topk`.
    """
    count = fields.size("num_hidden_layers")
    types = fields.types("indexer_types", count, ("full", "shared"))
    if types is not None:
        return tuple(layer for layer, kind in enumerate(types) if kind == "full")
    if (pattern := fields.raw.get("index_topk_pattern")) is not None:
        if not re.fullmatch(f"[FS]{{{count}}}", str(pattern)):
            raise fields.error("index_topk_pattern", f"is not {count} of F and S")
        return tuple(layer for layer, kind in enumerate(pattern) if kind == "F")
    every = max(fields.size("index_topk_freq", default=1, least=0), 1)
    after = fields.size("index_skip_topk_offset", default=2, least=0)
    return tuple(n for n in range(count) if max(n - after + 1, 0) % every == 0)


LATENT = (
    Family(
        "DeepseekV2ForCausalLM",
        ("deepseek_v2",),
        _latent,
        read=_latent_fields,
        eager=False,
    ),
    Family(
        "DeepseekV3ForCausalLM",
        ("deepseek_v3", "kimi_k2"),
        _latent,
        read=_latent_fields,
        eager=False,
        untraced=("kimi_k2",),
    ),
    # Kimi K2.5 and later, which also see.
    Family(
        "KimiK25ForConditionalGeneration",
        ("kimi_k25",),
        _latent,
        read=_latent_fields,
        nested=("kimi_k2", "deepseek_v3"),
        eager=False,
        untraced=("kimi_k2",),
    ),
    Family(
        "DeepseekV32ForCausalLM",
        ("deepseek_v32",),
        _latent,
        read=_indexed_fields,
        eager=False,
    ),
    Family(
        "GlmMoeDsaForCausalLM",
        ("glm_moe_dsa",),
        _latent,
        read=_glm_fields,
        eager=False,
    ),
)
