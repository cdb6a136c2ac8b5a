"""Gives each linear of a rank its scheme: which of its layers have it, what is padded,
and whether the ranks cut through what shares a scale.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import Engine, GemmShape, Platform
from flytune.shapes.linears import Linear
from flytune.shapes.quant_rule import BF16_HINT, Verdict
from flytune.shapes.quant_schemes import MXFP4_WEIGHT, NVFP4, Scheme
from flytune.shapes.rules import RULES
from flytune.shapes.splits import RankLinear, SplitError

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig
    from flytune.shapes.quantization import Quantization

# vLLM's `mxfp4_round_up_hidden_size_and_intermediate_size`, of the kernels that it
# takes on gfx950 and on Hopper: the multiples of the hidden size and of an expert's.
_MXFP4_EXPERTS: dict[Platform, tuple[str, int, int]] = {
    "rocm": ("AITER", 256, 256),
    "cuda": ("triton_kernels", 1, 64),
    "cpu": ("vLLM", 1, 64),
}
_NVFP4_MULTIPLE = 32
"""vLLM's `pad_nvfp4_weight_for_cutlass`."""
_TRIED = (1, 2, 4, 8, 16, 32, 64)
"""Tensor-parallel ranks that an error may offer."""


class SchemeError(FlytuneError):
    """The ranks cut through what shares a scale, or through packed values."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who runs the model, and over how many ranks."""

    engine: Engine
    tp: int
    ep: int
    platform: Platform

    def of(self, linear: Linear) -> int:
        """Return the ranks that divide a linear."""
        return 1 if linear.experts and self.ep > 1 else self.tp


@dataclass(frozen=True, slots=True)
class Share:
    """A linear of a rank in the layers that have one scheme."""

    part: RankLinear
    scheme: Scheme | None
    """None in high precision."""

    def applied(self, row: GemmShape) -> GemmShape:
        """Return the row with the types of the scheme."""
        if self.scheme is None:
            return row
        return replace(
            row,
            op="scaled_mm" if row.op in ("mm", "addmm") else row.op,
            a_dtype=self.scheme.activations or row.a_dtype,
            b_dtype=self.scheme.weights,
            scaling=self.scheme.scaling,
        )


def shares_of(
    config: "ModelConfig",
    quantization: "Quantization | None",
    parts: tuple[RankLinear, ...],
    ranks: Ranks,
) -> tuple[Share, ...]:
    """Return the linears of a rank, one that has several schemes several times.

    Raises:
        SchemeError: ranks cut what a scheme keeps together; the message names the
            layer and its sizes.
        FlytuneError: as `Quantization.of`.
    """
    if quantization is None:
        return tuple(Share(part, None) for part in parts)
    found: list[Share] = []
    for part in parts:
        for verdict, layers in _schemes(config, quantization, part.linear, ranks):
            words = verdict.why and f"{quantization.plain}, {verdict.why}"
            if verdict.scheme is not None:
                words = verdict.scheme.words
            words = words or quantization.plain
            if layers and len(layers) < part.linear.count:
                words += f", {_ranges(layers)}"
            own = replace(part.linear, layers=layers, count=max(len(layers), 1))
            said = replace(part, linear=own, rule=f"{part.rule}; {words}")
            found.append(Share(_fitted(said, verdict.scheme, ranks), verdict.scheme))
    return tuple(found)


def _schemes(
    config: "ModelConfig",
    quantization: "Quantization",
    linear: Linear,
    ranks: Ranks,
) -> Iterator[tuple[Verdict, tuple[int, ...]]]:
    """Yield each scheme that a linear has, and its layers; none of the head."""
    nested = bool(config.family.nested)
    if "*" not in linear.module:
        yield quantization.of(linear, None, ranks.engine, nested=nested), ()
        return
    layers = linear.layers or tuple(range(config.num_hidden_layers))
    assert len(layers) == linear.count, linear.module
    first: dict[Scheme | None, Verdict] = {}
    held: dict[Scheme | None, list[int]] = {}
    for layer in layers:
        verdict = quantization.of(linear, layer, ranks.engine, nested=nested)
        first.setdefault(verdict.scheme, verdict)
        held.setdefault(verdict.scheme, []).append(layer)
    for scheme, verdict in first.items():
        yield verdict, tuple(held[scheme])


def _ranges(layers: tuple[int, ...]) -> str:
    """Say "layers 0-2, 5" of layers in order."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    said = (f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs)
    return f"layer{'s' if layers[1:] else ''} {', '.join(said)}"


def _fitted(part: RankLinear, scheme: Scheme | None, ranks: Ranks) -> RankLinear:
    """Return the linear as its kernel takes it, padded where the engine pads it."""
    if scheme is None:
        return part
    vllm = ranks.engine == "vllm"
    if scheme == MXFP4_WEIGHT and part.experts and vllm:
        return _padded_experts(part, ranks.platform)
    _check(part, scheme, ranks)
    if scheme == NVFP4 and vllm and not part.experts:
        return _padded(part, _NVFP4_MULTIPLE, _NVFP4_MULTIPLE, "for CUTLASS")
    return part


def _padded_experts(part: RankLinear, platform: Platform) -> RankLinear:
    kernels, wide, inner = _MXFP4_EXPERTS[platform]
    who = f"for {kernels} on {platform}"
    if len(part.widths) == 1:
        return _padded(part, wide, inner, who)
    n = sum(_up(width, inner) for width in part.widths)
    return _padded(replace(part, n=n), 1, wide, who, was=(part.n, part.k))


def _padded(
    part: RankLinear,
    n: int,
    k: int,
    who: str,
    was: tuple[int, int] | None = None,
) -> RankLinear:
    """Return the linear with its sizes at a multiple.

    Args:
        n: What outputs are padded to a multiple of.
        k: As above, of inputs.
        was: The sizes before, where some of it is done.
    """
    old = was or (part.n, part.k)
    new = _up(part.n, n), _up(part.k, k)
    if new == old:
        return part
    rule = f"{part.rule}, padded from {old} {who}"
    return replace(part, n=new[0], k=new[1], rule=rule)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _check(part: RankLinear, scheme: Scheme, ranks: Ranks) -> None:
    """Refuse a linear that holds a part of what shares a scale or lies in one word.

    Source: vLLM's `validate_fp8_block_shape`, `Fp8MoEMethod.create_weights` and
    `ColumnParallelLinear._maybe_allow_fp8_block_shape_mismatch` (what is merged may
    hold parts of blocks); the `create_weights` of the other methods.
    """
    divides = RULES[ranks.engine][part.linear.style].divides
    cut = ranks.of(part.linear) > 1
    experts = bool(part.experts) and ranks.engine == "vllm"
    # A whole matrix may end in a part of a block, and has a scale for it.
    inputs = not scheme.block or (divides == "rows" and (cut or experts))
    if scheme.group and inputs and part.k % scheme.group:
        each = f"a scale for each {scheme.group} inputs"
        raise _uneven(part, scheme, each, part.k)
    merged = len(part.widths) > 1 and ranks.engine == "vllm" and not experts
    outputs = divides == "columns" and (cut or experts) and not merged
    for width in part.widths if scheme.block and outputs else ():
        if width % scheme.block:
            each = f"a scale for each {scheme.block} outputs"
            raise _uneven(part, scheme, each, width)
    if part.n % scheme.multiple:
        each = f"{scheme.multiple} outputs in a word"
        raise _uneven(part, scheme, each, part.n)


def _uneven(part: RankLinear, scheme: Scheme, each: str, size: int) -> SchemeError:
    return SchemeError(
        f"{scheme.scaling} has {each}, which do not divide {size} of "
        f"({part.n}, {part.k}): `{part.linear.module}`"
    )


def with_ranks_that_work(
    error: SchemeError,
    ranks: Ranks,
    linears: tuple[Linear, ...],
    divide: Callable[[int, int], object],
) -> SchemeError:
    """Return the error with a hint of the ranks that the model can be divided over.

    Args:
        ranks: Those that cannot.
        divide: Raises where (tp, ep) ranks do not divide it.
    """

    def works(tp: int, ep: int) -> bool:
        try:
            divide(tp, ep)
        except (SchemeError, SplitError):
            return False
        return True

    tps = [str(each) for each in _TRIED if works(each, ranks.ep)]
    hints = [f"--tp {' or '.join(tps)} divides it"] if tps else []
    mixed = any(linear.experts for linear in linears)
    if ranks.ep == 1 < ranks.tp and mixed and works(ranks.tp, ranks.tp):
        hints.append(f"so does --tp {ranks.tp} with --ep {ranks.tp}")
    return SchemeError(str(error), hint="; ".join((*hints, BF16_HINT)))
