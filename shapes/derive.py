"""Arithmetic on the config: a model's GEMMs for ranks, an engine and token counts.

Every row has `m` = tokens, the head's too: in decoding each sequence brings one token
and needs its logits. A prefill that keeps the last logits alone runs the head at
`m` = sequences, which the decode counts cover.
"""

from dataclasses import replace
from typing import Literal

from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import MX, MX_BLOCK, Engine, GemmShape
from flytune.shapes.model_config import ModelConfig
from flytune.shapes.splits import RankLinear, split_transformers, split_vllm

Attention = Literal["sdpa", "eager"]
Quant = Literal["bf16", "mxfp8", "mxfp4"]


def derive_shapes(
    config: ModelConfig,
    *,
    tp: int,
    engine: Engine,
    tokens: tuple[int, ...],
    attention: Attention = "sdpa",
    quant: Quant | None = None,
) -> tuple[GemmShape, ...]:
    """List one rank's GEMMs of a forward pass, for each token count in turn.

    Within a token count the rows are in the order the model calls them.
    `attention="sdpa"` has no GEMM of attention: the fused kernel is not one. "eager"
    has two a layer, for one sequence of `tokens` tokens and no earlier ones.

    Args:
        quant: None for the model's own type. "bf16" runs all of it in bfloat16; of the
            others the layers' linears take both operands, and the head none.

    Raises:
        SplitError: the ranks do not divide the model.
        FlytuneError: eager attention asked of an engine that has none, or a layer
            that blocks of one scale do not divide.
    """
    if engine == "vllm" and attention == "eager":
        raise FlytuneError("vllm has no eager attention", hint="use --attention sdpa")
    split = split_vllm if engine == "vllm" else split_transformers
    parts = split(config, tp)
    dtype, note = config.dtype, ""
    if engine == "vllm" and dtype == "float32":
        # vLLM's `_resolve_auto_dtype` in config/model.py.
        dtype, note = "bfloat16", "; float32 runs as bfloat16"
    if quant == "bf16" and dtype != "bfloat16":
        dtype, note = "bfloat16", f"; {config.dtype} runs as bfloat16"
    rows: list[GemmShape] = []
    for m in tokens:
        for part in parts:
            row = _linear_row(part, m, tp, engine, dtype, note)
            rows.append(_quantised(row, quant) if quant in MX else row)
            if attention == "eager" and part.module.endswith(".v_proj"):
                rows.extend(_eager_rows(config, m, tp, dtype))
    return tuple(rows)


def _linear_row(
    part: RankLinear, m: int, tp: int, engine: Engine, dtype: str, note: str
) -> GemmShape:
    return GemmShape(
        op="addmm" if part.bias else "mm",
        m=m,
        n=part.n,
        k=part.k,
        a_dtype=dtype,
        b_dtype=dtype,
        out_dtype=dtype,
        bias=part.bias,
        module=part.module,
        count=part.count,
        tp=tp,
        engine=engine,
        rule=part.rule + note,
    )


def _quantised(row: GemmShape, quant: Quant) -> GemmShape:
    """Return a linear with both operands in a microscaling format; not the head.

    Raises:
        FlytuneError: the blocks of one scale do not divide K.
    """
    if "layers." not in row.module:
        return replace(row, rule=f"{row.rule}; not in {quant}")
    if row.k % MX_BLOCK:
        raise FlytuneError(
            f"{quant} has a scale for each {MX_BLOCK} inputs, which do not divide "
            f"{row.k} of `{row.module}`",
            hint="choose another --quant or --tp",
        )
    return replace(
        row,
        op="scaled_mm",
        a_dtype=MX[quant],
        b_dtype=MX[quant],
        scaling=quant,
        rule=f"{row.rule}; {quant}, a scale for each {MX_BLOCK} inputs",
    )


def _eager_rows(
    config: ModelConfig, m: int, tp: int, dtype: str
) -> tuple[GemmShape, GemmShape]:
    """Return query @ key.T, then scores @ value: transformers' `repeat_kv` has given
    each query head its own copy of a kv head, so the batch is the query heads."""
    heads, head_dim = config.num_attention_heads // tp, config.head_dim
    scores = GemmShape(
        op="bmm",
        m=m,
        n=m,
        k=head_dim,
        batch=heads,
        a_dtype=dtype,
        b_dtype=dtype,
        out_dtype=dtype,
        module="model.layers.*.self_attn",
        count=config.num_hidden_layers,
        tp=tp,
        rule=f"scores of {heads} heads: query @ key.T of one sequence",
    )
    context = GemmShape(
        op="bmm",
        m=m,
        n=head_dim,
        k=m,
        batch=heads,
        a_dtype=dtype,
        b_dtype=dtype,
        out_dtype=dtype,
        layout="NN",
        module="model.layers.*.self_attn",
        count=config.num_hidden_layers,
        tp=tp,
        rule=f"context of {heads} heads: scores @ value of one sequence",
    )
    return scores, context
