"""Arithmetic on the config: a model's GEMMs for ranks, an engine and token counts.

Every row has `m` = tokens, the head's too: in decoding each sequence brings one token
and needs its logits. A prefill that keeps the last logits alone runs the head at
`m` = sequences, which the decode counts cover.
"""

from dataclasses import replace
from typing import Literal

from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import Engine, GemmShape, Op, Platform
from flytune.shapes.linears import Linear
from flytune.shapes.model_config import ModelConfig
from flytune.shapes.quant_fit import Ranks, SchemeError, with_ranks_that_work
from flytune.shapes.quant_rows import Share, shares_of
from flytune.shapes.quant_schemes import Quant
from flytune.shapes.quantization import find_quantization
from flytune.shapes.splits import RankLinear, SplitError, split_linear

Attention = Literal["sdpa", "eager"]
ExpertCalls = Literal["grouped", "each"]


def derive_shapes(
    config: ModelConfig,
    *,
    tp: int,
    ep: int = 1,
    engine: Engine,
    tokens: tuple[int, ...],
    attention: Attention = "sdpa",
    quant: Quant | None = None,
    experts: ExpertCalls = "grouped",
    platform: Platform = "cuda",
) -> tuple[GemmShape, ...]:
    """List one rank's GEMMs of a forward pass, for each token count in turn.

    Within a token count the rows are in the order the model calls them.
    `attention="sdpa"` has no GEMM of attention: the fused kernel is not one. "eager"
    has two a layer, for one sequence of `tokens` tokens and no earlier ones.

    Args:
        ep: Expert-parallel ranks: past one, each holds whole experts.
        experts: "grouped" for one GEMM of all that a rank holds, "each" for one each,
            as programs run them that have no grouped kernel.
        quant: None for the checkpoint's own types. "bf16" runs all of it in bfloat16;
            the others quantise the layers' linears of a model that is not.
        platform: Whose kernels decide what quantised experts are padded to.

    Raises:
        SplitError: the ranks do not divide the model.
        SchemeError: the ranks cut through what shares a scale; the hint says which
            ranks do not.
        FlytuneError: eager attention asked of an engine or a family whose bmm are not
            known, or a quantisation that is not known or that the engine cannot run.
    """
    _check(config, engine, attention)
    shares = _shares(config, quant, Ranks(engine, tp, ep, platform))
    dtype, note = _dtype(config, engine, quant)
    rows: list[GemmShape] = []
    for m in tokens:
        for share in shares:
            part = share.part
            if attention == "eager" and part.linear.rows.name == "heads":
                rows.extend(_eager_rows(config, part.linear, m, tp, dtype))
            row = _linear_row(part, m, tp, ep, engine, dtype, note)
            if part.experts and experts == "each":
                row = _of_each_expert(row, part, m)
            rows.append(share.applied(row))
    return tuple(rows)


def _shares(
    config: ModelConfig, quant: Quant | None, ranks: Ranks
) -> tuple[Share, ...]:
    """Return what a rank runs of each linear, by the scheme that it has."""
    engine = ranks.engine
    linears = config.family.linears(config, engine)
    quantization = find_quantization(config, engine, quant)

    def divided(tp: int, ep: int) -> tuple[Share, ...]:
        _check_ranks(config, linears, engine, tp, ep)
        parts = tuple(
            part for linear in linears for part in split_linear(linear, engine, tp, ep)
        )
        own = replace(ranks, tp=tp, ep=ep)
        return shares_of(config, quantization, parts, own)

    try:
        return divided(ranks.tp, ranks.ep)
    except SchemeError as error:
        raise with_ranks_that_work(error, ranks, linears, divided) from error


def _check(config: ModelConfig, engine: Engine, attention: Attention) -> None:
    if engine == "vllm" and attention == "eager":
        raise FlytuneError("vllm has no eager attention", hint="use --attention sdpa")
    if attention == "eager" and not config.family.eager:
        raise FlytuneError(
            f"the bmm of its eager attention are not known: `{config.architecture}`",
            hint="use --attention sdpa",
        )


def _check_ranks(
    config: ModelConfig, linears: tuple[Linear, ...], engine: Engine, tp: int, ep: int
) -> None:
    routed = [linear.experts for linear in linears if linear.experts]
    if ep > 1 and not routed:
        raise SplitError(
            f"no experts to divide: `{config.architecture}`", hint="leave --ep out"
        )
    if ep > 1 and any(experts.takes_all for experts in routed):
        raise SplitError(
            f"transformers has no expert-parallel plan of: `{config.architecture}`",
            hint="leave --ep out",
        )
    planned = any(linear.style != "replicated" for linear in linears)
    if tp > 1 and engine == "transformers" and not planned:
        raise SplitError(
            f"transformers has no tensor-parallel plan of: `{config.architecture}`",
            hint="leave --tp out",
        )


def _dtype(config: ModelConfig, engine: Engine, quant: Quant | None) -> tuple[str, str]:
    """Return the type that the model runs in, and the rule's words where it is not
    the config's."""
    dtype, note = config.dtype, ""
    if engine == "vllm" and dtype == "float32":
        # vLLM's `_resolve_auto_dtype` in config/model.py.
        dtype, note = "bfloat16", "; float32 runs as bfloat16"
    if quant == "bf16" and dtype != "bfloat16":
        dtype, note = "bfloat16", f"; {config.dtype} runs as bfloat16"
    return dtype, note


def _linear_row(
    part: RankLinear, m: int, tp: int, ep: int, engine: Engine, dtype: str, note: str
) -> GemmShape:
    linear = part.linear
    own = linear.dtype or dtype
    op: Op = "addmm" if part.bias else "mm"
    batch, groups = part.batch, 0
    if linear.batch is not None:
        op = "bmm"
    elif linear.experts is not None and linear.experts.takes_all:
        op, batch = "bmm", part.experts
    elif linear.experts is not None:
        op, groups = "grouped_mm", part.experts
        # A router that balances its experts gives each rank an even share.
        m = -(-m * linear.experts.per_token // ep)
    return GemmShape(
        op=op,
        m=m,
        n=part.n,
        k=part.k,
        batch=batch,
        groups=groups,
        a_dtype=own,
        b_dtype=own,
        out_dtype=own,
        layout=linear.layout,
        bias=part.bias,
        module=linear.module,
        count=linear.count,
        tp=tp,
        ep=ep,
        engine=engine,
        rule=part.rule + note,
    )


def _of_each_expert(row: GemmShape, part: RankLinear, tokens: int) -> GemmShape:
    """Return the GEMM of one expert, called for each that has tokens.

    A router that balances its experts gives each as many, and too few tokens meet as
    many experts as they pick.
    """
    experts = part.linear.experts
    assert experts is not None
    picked, called = tokens * experts.per_token, part.experts
    m = tokens if experts.takes_all else -(-picked // experts.total)
    if not experts.takes_all:
        called = min(called, row.m)
    words = f"{row.rule}; {called} experts with tokens, one at a time"
    count = row.count * called
    return replace(row, op="mm", m=m, batch=1, groups=0, count=count, rule=words)


def _eager_rows(
    config: ModelConfig, out: Linear, m: int, tp: int, dtype: str
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
        module=out.module.rpartition(".")[0],
        count=out.count,
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
        module=out.module.rpartition(".")[0],
        count=out.count,
        tp=tp,
        rule=f"context of {heads} heads: scores @ value of one sequence",
    )
    return scores, context
