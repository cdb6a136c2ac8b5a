"""Families with multi-head latent attention and a mixture of experts.

Source of each: transformers `models/NAME/{configuration,modeling}_NAME.py`, and where
vLLM differs, the file of its `model_executor/models/` that is named.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flytune.shapes import attention, mlp
from flytune.shapes.family import Family, Value
from flytune.shapes.fields import Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Linear
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
    picks = attention.indexer(config, engine, LAYERS) if sparse_keys else ()
    return (
        *mla[:-1],
        *picks,
        mla[-1],
        *dense_then_sparse(config, engine),
        *mlp.head(config, engine),
    )


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
    return {**_latent_fields(fields)} | {name: fields.size(name) for name in names}


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
        read=_indexed_fields,
        eager=False,
    ),
)
