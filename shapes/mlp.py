"""The linears of a layer's second half: a gated or plain MLP, or a mixture of experts
with its router and shared experts; and the head.

Source of each: transformers `models/*/modeling_*.py`, which the trace checks, and
vLLM's `model_executor/models/*.py` and `layers/fused_moe/`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flytune.shapes.attention import hidden
from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Experts, Linear, Units

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig


GATE_UP = ("gate_proj", "up_proj")


def inner(config: "ModelConfig", size: int | None = None) -> Units:
    """Return the side of an MLP's linear that ranks divide."""
    total, field = size or config.intermediate_size, "intermediate_size"
    return Units(total, field, "intermediate features")


def gated(
    config: "ModelConfig",
    engine: Engine,
    path: str,
    count: int,
    *,
    between: Units | None = None,
    bias: bool = False,
    in_checkpoint: bool = False,
) -> tuple[Linear, ...]:
    """Return gate, up and down.

    Args:
        path: Of the MLP, such as "model.layers.*.mlp".
        between: The size between; the config's `intermediate_size` by default.
        in_checkpoint: True where transformers' model holds gate and up as one.
    """
    middle, wide = between or inner(config), hidden(config)
    down = f"{path}.down_proj"
    if engine == "vllm":
        gate_up = tuple(
            Units(middle.total, middle.field, middle.name, middle.size, label)
            for label in GATE_UP
        )
        merged = Linear(
            f"{path}.gate_up_proj",
            gate_up,
            wide,
            "MergedColumnParallelLinear",
            count,
            bias,
            parts=() if in_checkpoint else GATE_UP,
        )
        return (
            merged,
            Linear(down, (wide,), middle, "RowParallelLinear", count, bias),
        )
    if in_checkpoint:
        both = Units(2 * middle.elements, "gate_up_proj features")
        fused, split = f"{path}.gate_up_proj", "rowwise_split_input"
        return (
            Linear(fused, (both,), wide, "colwise_gather_output", count, bias),
            Linear(down, (wide,), middle, split, count, bias),
        )
    up = "colwise"
    return (
        Linear(f"{path}.gate_proj", (middle,), wide, up, count, bias),
        Linear(f"{path}.up_proj", (middle,), wide, up, count, bias),
        Linear(down, (wide,), middle, "rowwise", count, bias),
    )


def ungated(
    config: "ModelConfig",
    engine: Engine,
    up: str,
    down: str,
    *,
    bias: bool,
    in_plan: bool = True,
    of_plan: bool = False,
) -> tuple[Linear, ...]:
    """Return a plain MLP: `up` and `down` are the paths of its two linears.

    Args:
        in_plan: True where transformers' plan of the family splits it.
        of_plan: True where vLLM runs transformers' modules, split by its plan.
    """
    middle, wide = inner(config), hidden(config)
    styles = ("colwise", "rowwise") if in_plan else ("replicated", "replicated")
    if engine == "vllm" and of_plan and not in_plan:
        styles = ("ReplicatedLinear", "ReplicatedLinear")
    elif engine == "vllm":
        styles = ("ColumnParallelLinear", "RowParallelLinear")
    calls = config.num_hidden_layers
    return (
        Linear(up, (middle,), wide, styles[0], calls, bias),
        Linear(down, (wide,), middle, styles[1], calls, bias),
    )


@dataclass(frozen=True, slots=True)
class Mixture:
    """What a family's mixture of experts is, and its names."""

    experts: int
    per_token: int
    size: int
    """Features of one expert."""
    size_field: str
    router: str = "gate"
    router_dtypes: tuple[str, str] = ("", "")
    """transformers' and vLLM's type of its GEMM, where it is not the model's."""
    router_bias: bool = False
    shared: int = 0
    """Features of the shared experts, all together; 0 where there are none."""
    shared_name: str = "shared_experts"
    shared_gate: str = ""
    """The linear that weighs the shared expert, where there is one."""
    styles: tuple[str, str] = ("packed_colwise", "rowwise")
    """transformers' tensor-parallel plan of gate_up_proj and down_proj."""
    layout: str = "TN"
    """transformers' of the weights, as `GemmShape.layout`."""
    takes_all: bool = False
    """As `Experts.takes_all`, in transformers."""
    clamped: bool = False
    """As `Experts.clamped`."""


def mixture(
    config: "ModelConfig", engine: Engine, path: str, count: int, moe: Mixture
) -> tuple[Linear, ...]:
    """Return the router, the routed experts' two grouped GEMMs and the shared experts.

    No bias is in a grouped GEMM: where the experts have one it is added after it.
    """
    wide, size = hidden(config), Units(moe.size, moe.size_field, "expert features")
    gate_up = tuple(
        Units(moe.size, moe.size_field, size.name, label=part)
        for part in ("gate", "up")
    )
    vllm = engine == "vllm"
    takes_all = moe.takes_all and not vllm
    held = Experts(moe.experts, moe.per_token, takes_all, moe.clamped)
    router = Linear(
        f"{path}.{moe.router}",
        (Units(moe.experts, "experts", "experts"),),
        wide,
        "ReplicatedLinear" if vllm else "replicated",
        count,
        moe.router_bias,
        dtype=moe.router_dtypes[1 if vllm else 0],
        kept="a router",
    )
    first, second = ("FusedMoE w13", "FusedMoE w2") if vllm else moe.styles
    w13, w2 = ("experts.w13", "experts.w2") if vllm else ("experts", "experts")
    layout = "TN" if vllm else moe.layout
    routed = tuple(
        Linear(
            f"{path}.{name}",
            columns,
            rows,
            style,
            count,
            experts=held,
            layout=layout,
            # One kernel runs the three, and they have one scheme.
            parts=(*GATE_UP, "down_proj"),
        )
        for name, columns, rows, style in (
            (w13, gate_up, wide, first),
            (w2, (wide,), size, second),
        )
    )
    if not moe.shared:
        return (router, *routed)
    between = Units(moe.shared, moe.size_field, "shared features")
    shared = gated(config, engine, f"{path}.{moe.shared_name}", count, between=between)
    if not moe.shared_gate:
        return (router, *routed, *shared)
    one = (Units(1, moe.shared_gate),)
    gate = f"{path}.{moe.shared_gate}"
    weigh = Linear(gate, one, wide, router.style, count, kept="a gate of one output")
    return (router, *routed, *shared, weigh)


def head(config: "ModelConfig", engine: Engine) -> tuple[Linear, ...]:
    """Return the head, which runs for every token."""
    words = Units(config.vocab_size, "vocab_size", "vocabulary entries")
    style = "ParallelLMHead" if engine == "vllm" else "colwise_gather_output"
    return (Linear("lm_head", (words,), hidden(config), style, 1),)
