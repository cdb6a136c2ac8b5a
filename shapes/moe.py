"""Families with a mixture of experts and plain attention.

Source of each: transformers `models/NAME/{configuration,modeling}_NAME.py`, and where
vLLM differs, the file of its `model_executor/models/` that is named.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flytune.shapes import attention, mlp
from flytune.shapes.attention import Names
from flytune.shapes.family import Family, Value, text_alone
from flytune.shapes.fields import Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Linear, Units, in_layers
from flytune.shapes.mlp import Mixture

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig

LAYERS = "model.layers.*"
MLP = f"{LAYERS}.mlp"


def _mixtral(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    moe = Mixture(
        config.extra("num_local_experts"),
        config.extra("num_experts_per_tok"),
        config.intermediate_size,
        "intermediate_size",
    )
    # vLLM calls the block as the checkpoint does.
    path = f"{LAYERS}.block_sparse_moe" if engine == "vllm" else MLP
    return (
        *attention.plain(config, engine, LAYERS),
        *mlp.mixture(config, engine, path, config.num_hidden_layers, moe),
        *mlp.head(config, engine),
    )


def _local_experts(fields: Fields) -> Mapping[str, Value]:
    names = ("num_local_experts", "num_experts_per_tok")
    return {name: fields.size(name) for name in names}


def _qwen3_moe(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    bias = config.attention_bias
    moe = Mixture(
        config.extra("num_experts"),
        config.extra("num_experts_per_tok"),
        config.extra("moe_intermediate_size"),
        "moe_intermediate_size",
        shared=config.extra(_SHARED) if engine == "vllm" else 0,
        shared_name="shared_expert",
        shared_gate="shared_expert_gate",
    )
    # vLLM's qwen3_moe.py gives the output projection no bias.
    o_bias = bias and engine != "vllm"
    return (
        *attention.plain(config, engine, LAYERS, qkv_bias=bias, o_bias=o_bias),
        *_dense_or_sparse(config, engine, MLP, config.rows("moe_layers"), moe),
        *mlp.head(config, engine),
    )


def _dense_or_sparse(
    config: "ModelConfig",
    engine: Engine,
    path: str,
    sparse: tuple[int, ...],
    moe: Mixture,
    between: Units | None = None,
) -> tuple[Linear, ...]:
    """Return the mixture of the layers `sparse`, and the MLP of the others.

    Args:
        between: As `mlp.gated` has it, of the MLP.
    """
    dense = tuple(sorted(set(range(config.num_hidden_layers)) - set(sparse)))
    plain = mlp.gated(config, engine, path, len(dense), between=between)
    experts = mlp.mixture(config, engine, path, len(sparse), moe)
    return (
        *(in_layers(dense, plain) if dense else ()),
        *(in_layers(sparse, experts) if sparse else ()),
    )


def _qwen3_moe_fields(fields: Fields) -> Mapping[str, Value]:
    count = fields.size("num_hidden_layers")
    step = fields.size("decoder_sparse_step", default=1)
    dense = fields.layers("mlp_only_layers", count) or ()
    steps = range(step - 1, count, step)
    sparse = tuple(i for i in steps if i not in dense)
    names = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
    # vLLM reads it; transformers' model has no shared expert.
    shared = fields.size(_SHARED, default=0, least=0)
    return {
        **{name: fields.size(name) for name in names},
        "moe_layers": sparse,
        _SHARED: shared,
    }


_SHARED = "shared_expert_intermediate_size"


def _gpt_oss(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    bias = config.attention_bias or engine == "vllm"
    moe = Mixture(
        config.extra("num_local_experts"),
        config.extra("num_experts_per_tok"),
        config.intermediate_size,
        "intermediate_size",
        router="router",
        router_bias=True,
        styles=("replicated", "replicated"),
        layout="NN",
        clamped=True,
    )
    vllm = engine == "vllm"
    # vLLM's gpt_oss.py names its attention `attn`.
    names = Names(block="attn" if vllm else "self_attn", styles=_NO_PLAN)
    return (
        *attention.plain(config, engine, LAYERS, names, qkv_bias=bias, o_bias=bias),
        *mlp.mixture(config, engine, MLP, config.num_hidden_layers, moe),
        *mlp.head(config, engine),
    )


_NO_PLAN = ("replicated", "replicated")


def _llama4(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    sparse, path = config.rows("moe_layers"), f"{LAYERS}.feed_forward"
    bias = config.attention_bias
    moe = Mixture(
        config.extra("num_local_experts"),
        config.extra("num_experts_per_tok"),
        config.intermediate_size,
        "intermediate_size",
        router="router",
        shared=config.intermediate_size,
        shared_name="shared_expert",
        styles=("packed_rowwise", "rowwise"),
        layout="NN",
        takes_all=True,
    )
    wide = config.extra("intermediate_size_mlp")
    between = Units(wide, "intermediate_size_mlp", "intermediate features")
    return (
        *attention.plain(config, engine, LAYERS, qkv_bias=bias, o_bias=bias),
        *_dense_or_sparse(config, engine, path, sparse, moe, between),
        *mlp.head(config, engine),
    )


def _llama4_fields(fields: Fields) -> Mapping[str, Value]:
    count = fields.size("num_hidden_layers")
    step = fields.size("interleave_moe_layer_step", default=1)
    listed = fields.layers("moe_layers", count)
    sparse = tuple(range(step - 1, count, step)) if listed is None else listed
    names = ("num_local_experts", "num_experts_per_tok", "intermediate_size_mlp")
    return {name: fields.size(name) for name in names} | {"moe_layers": sparse}


def _glm4_moe(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    bias = config.attention_bias
    return (
        *attention.plain(config, engine, LAYERS, qkv_bias=bias),
        *dense_then_sparse(config, engine, "float32"),
        *mlp.head(config, engine),
    )


def dense_then_sparse(
    config: "ModelConfig", engine: Engine, vllm_router: str = ""
) -> tuple[Linear, ...]:
    """Return the MLP of the first layers and the mixture of the others.

    The router is float32 in transformers, and `vllm_router` in vLLM: the model's own
    type in DeepSeek's, float32 in GLM 4.5's.
    """
    dense, size = config.extra("first_k_dense_replace"), "moe_intermediate_size"
    sparse = tuple(range(dense, config.num_hidden_layers))
    moe = Mixture(
        config.extra("n_routed_experts"),
        config.extra("num_experts_per_tok"),
        config.extra(size),
        size,
        router_dtypes=("float32", vllm_router),
        shared=config.extra("n_shared_experts") * config.extra(size),
    )
    return _dense_or_sparse(config, engine, MLP, sparse, moe)


def sparse_fields(fields: Fields) -> Mapping[str, Value]:
    names = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
    count = fields.size("num_hidden_layers")
    first = fields.size("first_k_dense_replace", least=0)
    # transformers' own classes take every layer after the first ones as sparse.
    if fields.size("moe_layer_freq", default=1) != 1:
        raise fields.error("moe_layer_freq", "is not 1, the one that is known,")
    return {
        **{name: fields.size(name) for name in names},
        "n_shared_experts": fields.size("n_shared_experts", least=0),
        "first_k_dense_replace": min(first, count),
    }


def _minimax_m2(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    moe = Mixture(
        config.extra("num_local_experts"),
        config.extra("num_experts_per_tok"),
        config.intermediate_size,
        "intermediate_size",
        router_dtypes=("", "float32"),
    )
    gathered = Names(styles=("colwise_gather_output", "rowwise_split_input"))
    path = f"{LAYERS}.block_sparse_moe" if engine == "vllm" else MLP
    return (
        *attention.plain(config, engine, LAYERS, gathered),
        *mlp.mixture(config, engine, path, config.num_hidden_layers, moe),
        *mlp.head(config, engine),
    )


_LLAMA4 = Family(
    "Llama4ForConditionalGeneration",
    ("llama4",),
    _llama4,
    kv_heads=8,
    head_dim=128,
    read=_llama4_fields,
    nested=("llama4_text",),
    eager=False,
)
MIXTURES = (
    Family(
        "MixtralForCausalLM", ("mixtral",), _mixtral, kv_heads=8, read=_local_experts
    ),
    Family(
        "Qwen3MoeForCausalLM",
        ("qwen3_moe",),
        _qwen3_moe,
        kv_heads=4,
        read=_qwen3_moe_fields,
    ),
    Family(
        "GptOssForCausalLM",
        ("gpt_oss",),
        _gpt_oss,
        kv_heads=8,
        head_dim=64,
        read=_local_experts,
        flags={"attention_bias": True},
    ),
    _LLAMA4,
    text_alone(_LLAMA4, "Llama4ForCausalLM"),
    Family(
        "Glm4MoeForCausalLM", ("glm4_moe",), _glm4_moe, kv_heads=8, read=sparse_fields
    ),
    Family(
        "MiniMaxM2ForCausalLM",
        ("minimax_m2",),
        _minimax_m2,
        kv_heads=8,
        head_dim=128,
        read=_local_experts,
    ),
)
