"""Families of dense decoders: plain attention and one MLP a layer.

Source of each: transformers `models/NAME/{configuration,modeling}_NAME.py`, and where
vLLM differs, the file of its `model_executor/models/` that is named.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from flytune.shapes import attention, mlp
from flytune.shapes.attention import Names
from flytune.shapes.family import Family, Value, text_alone
from flytune.shapes.fields import Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Linear

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig

LAYERS = "model.layers.*"


def _llama_like(
    config: "ModelConfig", engine: Engine, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> tuple[Linear, ...]:
    calls = config.num_hidden_layers
    return (
        *attention.plain(config, engine, LAYERS, qkv_bias=qkv_bias, o_bias=o_bias),
        *mlp.gated(config, engine, f"{LAYERS}.mlp", calls, bias=mlp_bias),
        *mlp.head(config, engine),
    )


def _llama(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    bias = config.attention_bias
    return _llama_like(config, engine, bias, bias, config.mlp_bias)


def _mistral(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    return _llama_like(config, engine, False, False, False)


def _qwen2(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    return _llama_like(config, engine, True, False, False)


def _qwen3(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    bias = config.attention_bias
    # vLLM's qwen3.py gives the output projection none.
    return _llama_like(config, engine, bias, bias and engine != "vllm", False)


def _gemma(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    bias = config.attention_bias
    return _llama_like(config, engine, bias, bias, False)


PHI3 = Names(
    in_checkpoint=True, styles=("colwise_gather_output", "rowwise_split_input")
)


def _phi3(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    calls, path = config.num_hidden_layers, f"{LAYERS}.mlp"
    return (
        *attention.plain(config, engine, LAYERS, PHI3),
        *mlp.gated(config, engine, path, calls, in_checkpoint=True),
        *mlp.head(config, engine),
    )


def _glm4(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    calls, bias, path = config.num_hidden_layers, config.attention_bias, f"{LAYERS}.mlp"
    return (
        *attention.plain(config, engine, LAYERS, qkv_bias=bias),
        *mlp.gated(config, engine, path, calls, in_checkpoint=True),
        *mlp.head(config, engine),
    )


def _starcoder2(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    bias, path = bool(config.extra("use_bias")), f"{LAYERS}.mlp"
    return (
        *attention.plain(config, engine, LAYERS, qkv_bias=bias, o_bias=bias),
        *mlp.ungated(config, engine, f"{path}.c_fc", f"{path}.c_proj", bias=bias),
        *mlp.head(config, engine),
    )


def _nemotron(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    bias, path = config.attention_bias, f"{LAYERS}.mlp"
    up, down = f"{path}.up_proj", f"{path}.down_proj"
    return (
        *attention.plain(config, engine, LAYERS, qkv_bias=bias, o_bias=bias),
        *mlp.ungated(config, engine, up, down, bias=config.mlp_bias),
        *mlp.head(config, engine),
    )


_NO_PLAN = ("replicated", "replicated")
FALCON = Names(
    block="self_attention",
    fused="query_key_value",
    out="dense",
    in_checkpoint=True,
    styles=_NO_PLAN,
)


def _falcon(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    """Both engines add a bias after the product: FalconLinear, `skip_bias_add`."""
    layers = "transformer.h.*"
    up, down = f"{layers}.mlp.dense_h_to_4h", f"{layers}.mlp.dense_4h_to_h"
    return (
        *attention.plain(config, engine, layers, FALCON),
        *mlp.ungated(config, engine, up, down, bias=False, in_plan=False),
        *_head_without_plan(config, engine),
    )


def _falcon_kv_heads(fields: Fields) -> int:
    """Return the kv heads: by `num_kv_heads`, one, or as many as there are heads.

    The first spelling says `n_head_kv`, and has in `model_type` alone that the model
    is of the new architecture: vLLM's `transformers_utils/configs/falcon.py`.
    """
    old = fields.raw.get("model_type") in ("RefinedWeb", "RefinedWebModel")
    heads = fields.size("n_head" if old else "num_attention_heads")
    is_new = fields.raw.get("model_type") == "RefinedWeb"
    if fields.flag("new_decoder_architecture", default=is_new):
        return fields.size("n_head_kv" if old else "num_kv_heads", default=heads)
    return 1 if fields.flag("multi_query", default=True) else heads


GPT_BIGCODE = Names(
    block="attn", fused="c_attn", out="c_proj", in_checkpoint=True, styles=_NO_PLAN
)


def _gpt_bigcode(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    # vLLM runs transformers' own modules, and calls the decoder `model`.
    layers = "model.h.*" if engine == "vllm" else "transformer.h.*"
    up, down = f"{layers}.mlp.c_fc", f"{layers}.mlp.c_proj"
    return (
        *attention.plain(
            config, engine, layers, GPT_BIGCODE, qkv_bias=True, o_bias=True
        ),
        *mlp.ungated(config, engine, up, down, bias=True, in_plan=False, of_plan=True),
        *_head_without_plan(config, engine),
    )


def _head_without_plan(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    (head,) = mlp.head(config, engine)
    return (head if engine == "vllm" else replace(head, style="replicated"),)


def _gpt_bigcode_kv_heads(fields: Fields) -> int:
    return 1 if fields.flag("multi_query", default=True) else fields.size("n_head")


def _starcoder2_fields(fields: Fields) -> Mapping[str, Value]:
    return {"use_bias": fields.flag("use_bias", default=True)}


_GEMMA3_SIZES = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
}
_GEMMA = Family("", (), _gemma, kv_heads=4, head_dim=256)
_GEMMA3 = replace(
    _GEMMA,
    architecture="Gemma3ForConditionalGeneration",
    model_types=("gemma3",),
    nested=("gemma3_text",),
    defaults=_GEMMA3_SIZES,
)
_BIGCODE_NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}

DENSE = (
    Family("LlamaForCausalLM", ("llama",), _llama),
    Family("MistralForCausalLM", ("mistral",), _mistral, kv_heads=8),
    Family("Qwen2ForCausalLM", ("qwen2",), _qwen2, kv_heads=32, free_head_dim=False),
    Family("Qwen3ForCausalLM", ("qwen3",), _qwen3, kv_heads=32, head_dim=128),
    replace(_GEMMA, architecture="Gemma2ForCausalLM", model_types=("gemma2",)),
    _GEMMA3,
    text_alone(_GEMMA3, "Gemma3ForCausalLM"),
    Family("Phi3ForCausalLM", ("phi3",), _phi3, free_head_dim=False),
    Family(
        "Glm4ForCausalLM",
        ("glm4",),
        _glm4,
        kv_heads=2,
        head_dim=128,
        flags={"attention_bias": True},
    ),
    Family(
        "Starcoder2ForCausalLM",
        ("starcoder2",),
        _starcoder2,
        kv_heads=2,
        read=_starcoder2_fields,
    ),
    Family("NemotronForCausalLM", ("nemotron",), _nemotron),
    Family(
        "FalconForCausalLM",
        ("falcon",),
        _falcon,
        kv_heads=_falcon_kv_heads,
        free_head_dim=False,
        names={"intermediate_size": "ffn_hidden_size"},
        inner=4,
    ),
    Family(
        "RWForCausalLM",
        ("RefinedWeb", "RefinedWebModel"),
        _falcon,
        kv_heads=_falcon_kv_heads,
        free_head_dim=False,
        names={
            "intermediate_size": "ffn_hidden_size",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
        inner=4,
        untraced=("RefinedWeb", "RefinedWebModel"),
    ),
    Family(
        "GPTBigCodeForCausalLM",
        ("gpt_bigcode",),
        _gpt_bigcode,
        kv_heads=_gpt_bigcode_kv_heads,
        free_head_dim=False,
        names=_BIGCODE_NAMES,
        inner=4,
    ),
)
