"""The linears of attention: plain heads (also multi-query, and fused in a checkpoint)
and multi-head latent attention (MLA).

Source of each: transformers `models/*/modeling_*.py`, which the trace checks, and
vLLM's `model_executor/models/*.py`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Linear, Units

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Names:
    """What a family calls the linears of plain attention."""

    block: str = "self_attn"
    apart: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    fused: str = "qkv_proj"
    """The merged linear: in vLLM, and in transformers where `in_checkpoint`."""
    out: str = "o_proj"
    in_checkpoint: bool = False
    """True where the checkpoint and transformers' model hold the three as one."""
    styles: tuple[str, str] = ("colwise", "rowwise")
    """transformers' tensor-parallel plan of the projections and the output."""


PLAIN = Names()


def hidden(config: "ModelConfig") -> Units:
    """Return the side of a linear that is the model's width, which no rank divides."""
    return Units(config.hidden_size, "hidden_size")


def plain(
    config: "ModelConfig",
    engine: Engine,
    layers: str,
    names: Names = PLAIN,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    gated: bool = False,
    kv_heads: int | None = None,
) -> tuple[Linear, ...]:
    """Return q, k, v and the output projection.

    Args:
        layers: Path of a layer, such as "model.layers.*".
        gated: True where q also yields a gate of its own size.
        kv_heads: Where they are not the config's.
    """
    path = f"{layers}.{names.block}"
    calls = config.num_hidden_layers
    size, heads_field = config.head_dim, "num_attention_heads"
    kv, kv_field = kv_heads or config.num_key_value_heads, "num_key_value_heads"
    q_size, count_q = 2 * size if gated else size, config.num_attention_heads
    apart = (
        Units(count_q, heads_field, "heads", q_size, names.apart[0]),
        Units(kv, kv_field, "kv heads", size, names.apart[1]),
        Units(kv, kv_field, "kv heads", size, names.apart[2]),
    )
    wide, made = hidden(config), Units(count_q, heads_field, "heads", size)
    up, down = names.styles
    merged = () if names.in_checkpoint or engine != "vllm" else names.apart
    if engine == "vllm":
        up, down = "QKVParallelLinear", "RowParallelLinear"
        sides: dict[str, tuple[Units, ...]] = {names.fused: apart}
    elif names.in_checkpoint:
        total = sum(units.elements for units in apart)
        sides = {names.fused: (Units(total, f"{names.fused} features"),)}
    else:
        sides = {units.label: (_unlabelled(units),) for units in apart}
    return (
        *(
            Linear(f"{path}.{name}", side, wide, up, calls, qkv_bias, parts=merged)
            for name, side in sides.items()
        ),
        Linear(f"{path}.{names.out}", (wide,), made, down, calls, o_bias),
    )


def _unlabelled(units: Units) -> Units:
    return Units(units.total, units.field, units.name, units.size)


def mla(
    config: "ModelConfig", engine: Engine, layers: str, *, in_plan: bool, a_bias: bool
) -> tuple[Linear, ...]:
    """Return multi-head latent attention, with q through a low rank or not.

    In vLLM prefill runs kv_b and decoding the two bmm that absorb it; rows of both are
    there for every token count.

    Args:
        in_plan: True where transformers' plan of the family splits attention.
        a_bias: True where the projections to a low rank and the output have one.
    """
    path, calls = f"{layers}.self_attn", config.num_hidden_layers
    rank, kv_rank = config.extra("q_lora_rank"), config.extra("kv_lora_rank")
    nope, rope = config.extra("qk_nope_head_dim"), config.extra("qk_rope_head_dim")
    value, wide = config.extra("v_head_dim"), hidden(config)

    def heads(size: int) -> Units:
        return Units(config.num_attention_heads, "num_attention_heads", "heads", size)

    kv_a = Units(kv_rank + rope, "kv_lora_rank", label="kv_a_proj_with_mqa")
    latent, vllm = Units(kv_rank, "kv_lora_rank"), engine == "vllm"
    up, down, whole, kv_style = _mla_styles(vllm, in_plan)
    # vLLM gives none of them a bias.
    bias = a_bias and not vllm
    q_a = Units(rank, "q_lora_rank", label="q_a_proj")
    q_b = Linear(
        f"{path}.q_b_proj" if rank else f"{path}.q_proj",
        (heads(nope + rope),),
        _unlabelled(q_a) if rank else wide,
        up,
        calls,
    )
    kv_b = Linear(f"{path}.kv_b_proj", (heads(nope + value),), latent, up, calls)
    out = Linear(f"{path}.o_proj", (wide,), heads(value), down, calls, bias)
    kv_path = f"{path}.{kv_a.label}"
    kv_one = Linear(kv_path, (_unlabelled(kv_a),), wide, kv_style, calls, bias)
    if not vllm:
        q_path = f"{path}.{q_a.label}"
        q_one = Linear(q_path, (_unlabelled(q_a),), wide, whole, calls, bias)
        return (*((q_one,) if rank else ()), q_b, kv_one, kv_b, out)
    if rank:
        style = "DeepSeekV2FusedQkvAProjLinear"
        kv_one = Linear(
            f"{path}.fused_qkv_a_proj",
            (q_a, kv_a),
            wide,
            style,
            calls,
            parts=(q_a.label, kv_a.label),
        )
    return (kv_one, q_b, *_absorbed(config, path, nope, value, kv_b), out)


def _mla_styles(vllm: bool, in_plan: bool) -> tuple[str, str, str, str]:
    """Return how q_b and kv_b, the output, q_a and kv_a are split."""
    if vllm:
        whole = "ReplicatedLinear"
        return "ColumnParallelLinear", "RowParallelLinear", whole, whole
    if in_plan:
        return "colwise", "rowwise", "replicated", "mla_kv_a_proj"
    return ("replicated",) * 4


def _absorbed(
    config: "ModelConfig", path: str, nope: int, value: int, kv_b: Linear
) -> tuple[Linear, ...]:
    """Return vLLM's kv_b and the bmm that stand for it in decoding.

    Source: `W_UK_T` [heads, nope, rank] and `W_UV` [heads, rank, value], both views of
    kv_b's weight, in `model_executor/layers/attention/mla_attention.py`.
    """
    heads = Units(config.num_attention_heads, "num_attention_heads", "heads")
    latent, style = kv_b.rows, "MLACommonImpl"
    key = Units(nope, "qk_nope_head_dim")
    out = Units(value, "v_head_dim")
    calls, note = kv_b.count, "decoding: kv_b absorbed"
    kept = "kv_b is dequantised into it"
    return (
        Linear(
            kv_b.module,
            kv_b.columns,
            kv_b.rows,
            kv_b.style,
            calls,
            note="prefill alone",
        ),
        Linear(
            f"{path}.W_UK_T",
            (latent,),
            key,
            style,
            calls,
            batch=heads,
            layout="NN",
            note=note,
            kept=kept,
        ),
        Linear(
            f"{path}.W_UV",
            (out,),
            latent,
            style,
            calls,
            batch=heads,
            note=note,
            kept=kept,
        ),
    )


def indexer(config: "ModelConfig", engine: Engine, layers: str) -> tuple[Linear, ...]:
    """Return what picks the keys of sparse attention (DeepSeek V3.2, GLM 5).

    vLLM merges wk and weights_proj; its products of queries and keys are in a kernel
    of their own, and in transformers no linears.
    """
    path, calls = f"{layers}.self_attn.indexer", config.num_hidden_layers
    rank, wide = Units(config.extra("q_lora_rank"), "q_lora_rank"), hidden(config)
    size, count = config.extra("index_head_dim"), config.extra("index_n_heads")
    q = Units(count, "index_n_heads", "index heads", size)
    key = Units(size, "index_head_dim", label="wk")
    weights = Units(count, "index_n_heads", label="weights_proj")
    if engine == "vllm":
        merged, style = (
            f"{path}.wk_weights_proj",
            "MergedColumnParallelLinear, disable_tp",
        )
        return (
            Linear(f"{path}.wq_b", (q,), rank, "ReplicatedLinear", calls),
            # Its wk is upcast while it is loaded: `quant_config=None` in vLLM.
            Linear(
                merged,
                (key, weights),
                wide,
                style,
                calls,
                kept="vllm never quantises it",
            ),
        )
    style = "replicated"
    return (
        Linear(f"{path}.wq_b", (q,), rank, style, calls),
        Linear(f"{path}.wk", (_unlabelled(key),), wide, style, calls),
        Linear(
            f"{path}.weights_proj",
            (_unlabelled(weights),),
            wide,
            style,
            calls,
            kept="kept in high precision",
        ),
    )
