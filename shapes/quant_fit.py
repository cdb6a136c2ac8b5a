"""Fits a linear, most of all a quantised one, to what a rank holds of it: padded, with
smaller blocks, or refused where the ranks cut through what shares a scale.

Source: vLLM 0.33; each function names its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import Engine, Platform
from flytune.shapes.linears import Linear
from flytune.shapes.quant_rule import BF16_HINT
from flytune.shapes.quant_schemes import MXFP4_WEIGHT, NVFP4, Scheme
from flytune.shapes.rules import RULES
from flytune.shapes.splits import RankLinear, SplitError

# `mxfp4_round_up_hidden_size_and_intermediate_size`, of the kernels that vLLM takes on
# gfx950, on Hopper and on CPUs: the multiples of the hidden size and of an expert's.
_MXFP4_EXPERTS: dict[Platform, tuple[str, int, int]] = {
    "rocm": ("AITER", 256, 256),
    "cuda": ("triton_kernels", 1, 64),
    "cpu": ("AMX", 32, 32),
}
_NVFP4_MULTIPLE = 32
"""`pad_nvfp4_weight_for_cutlass`."""
_LEAST_BLOCK = 32
_CPU_EXPERT_MULTIPLE = 32
_MARLIN_TILE = 64
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

    def cut(self, linear: Linear) -> bool:
        """Return whether a linear may be divided at all."""
        return self.tp > 1 and not (linear.experts and self.ep > 1)


def fitted(part: RankLinear, scheme: Scheme, ranks: Ranks) -> tuple[RankLinear, Scheme]:
    """Return the linear and its scheme as the engine's kernel takes them.

    Raises:
        SchemeError: there is no such kernel; the message names the layer and its sizes.
    """
    if ranks.engine == "vllm" and part.experts:
        if scheme == MXFP4_WEIGHT:
            kernels, wide, inner = _MXFP4_EXPERTS[ranks.platform]
            who = f"for {kernels} on {ranks.platform}"
            return _padded_expert(part, wide, inner, who), scheme
        if scheme.block:
            return part, _finer_blocks(part, scheme)
        if scheme.scaling in ("awq", "gptq"):
            return _integer_experts(part, scheme, ranks)
    _check(part, scheme, ranks)
    if ranks.engine != "vllm" or part.experts:
        return part, scheme
    if scheme == NVFP4 and ranks.platform == "cuda":
        part = _padded(part, _NVFP4_MULTIPLE, _NVFP4_MULTIPLE, "for CUTLASS")
    if scheme.blocks == "padded":
        part = _padded(part, scheme.block, 1, "to whole blocks")
    return part, scheme


def fitted_plain(part: RankLinear, ranks: Ranks) -> RankLinear:
    """Return a linear in high precision as the engine's kernel takes it.

    Source: `CPUUnquantizedExperts._padded_intermediate_size`, in vLLM's
    `layers/fused_moe/experts/cpu_moe.py`.
    """
    experts = part.linear.experts
    if (ranks.engine, ranks.platform) != ("vllm", "cpu") or experts is None:
        return part
    if experts.clamped:
        return part
    return _padded_expert(part, 1, _CPU_EXPERT_MULTIPLE, "for vLLM's kernel on cpu")


def _expert_sizes(part: RankLinear) -> tuple[int, int]:
    """Return the features between an expert's two GEMMs, and the hidden size."""
    if len(part.widths) > 1:
        return part.widths[0], part.k
    return part.k, part.n


def _finer_blocks(part: RankLinear, scheme: Scheme) -> Scheme:
    """Return the blocks that an expert's share of features is whole in.

    Source: `refine_fp8_moe_block_shape`; `validate_fp8_block_shape_moe`, which alone
    compressed-tensors has.
    """
    inner, hidden = _expert_sizes(part)
    if inner % scheme.block == 0:
        return scheme
    size = math.gcd(scheme.block, inner, hidden)
    if scheme.blocks == "checked" or size < _LEAST_BLOCK:
        raise _uneven(part, scheme, f"a scale for each {scheme.block} features", inner)
    was = f"{scheme.block}x{scheme.block}"
    words = scheme.words.replace(was, f"{size}x{size}")
    return replace(
        scheme,
        scaling=f"block{size}",
        words=f"{words}, which is {was} in the checkpoint",
        block=size,
        group=size,
    )


def _integer_experts(
    part: RankLinear, scheme: Scheme, ranks: Ranks
) -> tuple[RankLinear, Scheme]:
    """Return experts in integers: padded to Marlin's tiles, or in smaller groups.

    Source: `check_moe_marlin_supports_config`, `marlin_moe_padded_intermediate`, and
    `MoeWNA16Method.create_weights` for the rest.
    """
    inner, hidden = _expert_sizes(part)
    group = scheme.group
    if part.n % scheme.multiple:
        raise _uneven(part, scheme, _in_a_word(scheme), part.n)
    if not group or (inner % group == 0 and hidden % group == 0):
        if ranks.platform == "cuda" and hidden % 128 == 0:
            tile = math.lcm(_MARLIN_TILE, group or 1)
            part = _padded_expert(part, 1, tile, "for Marlin")
        return part, scheme
    while inner % group or hidden % group:
        group //= 2
        if group < _LEAST_BLOCK:
            each = f"a scale for each {scheme.group} inputs"
            raise _uneven(part, scheme, each, inner)
    words = f"{scheme.words}, in the kernel for each {group}"
    return part, replace(scheme, words=words, group=group)


def _padded_expert(part: RankLinear, wide: int, inner: int, who: str) -> RankLinear:
    """Return one of an expert's GEMMs with hidden size and features at multiples."""
    if len(part.widths) == 1:
        return _padded(part, wide, inner, who)
    n = sum(_up(width, inner) for width in part.widths)
    return _resized(part, n, _up(part.k, wide), who)


def _padded(part: RankLinear, outputs: int, inputs: int, who: str) -> RankLinear:
    return _resized(part, _up(part.n, outputs), _up(part.k, inputs), who)


def _resized(part: RankLinear, n: int, k: int, who: str) -> RankLinear:
    if (n, k) == (part.n, part.k):
        return part
    rule = f"{part.rule}, padded from ({part.n}, {part.k}) {who}"
    return replace(part, n=n, k=k, rule=rule)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _check(part: RankLinear, scheme: Scheme, ranks: Ranks) -> None:
    """Refuse a linear that holds a part of what shares a scale or lies in one word.

    Source: `validate_fp8_block_shape`, and `_maybe_allow_fp8_block_shape_mismatch` for
    what the fp8 method merges; the `create_weights` of the other methods.
    """
    divides = RULES[ranks.engine][part.linear.style].divides
    cut, vllm = ranks.cut(part.linear), ranks.engine == "vllm"
    padded = vllm and scheme.blocks == "padded"
    # A whole matrix may end in a part of a block, and has a scale for it.
    inputs = not scheme.block or padded or (divides == "rows" and cut)
    if scheme.group and inputs and part.k % scheme.group:
        raise _uneven(part, scheme, f"a scale for each {scheme.group} inputs", part.k)
    for width in _whole_widths(part, divides == "columns" and cut, scheme, vllm):
        if width % scheme.block:
            each = f"a scale for each {scheme.block} outputs"
            raise _uneven(part, scheme, each, width)
    if part.n % scheme.multiple:
        raise _uneven(part, scheme, _in_a_word(scheme), part.n)


def _whole_widths(
    part: RankLinear, cut: bool, scheme: Scheme, vllm: bool
) -> tuple[int, ...]:
    """Return the outputs of each projection that must be whole blocks."""
    merged = vllm and len(part.widths) > 1
    if not scheme.block or (vllm and scheme.blocks == "padded"):
        return ()
    if merged and scheme.blocks == "refined":
        return ()
    if cut:
        return part.widths
    # What is merged on one rank may end in a part of a block.
    return part.widths[:-1] if merged else ()


def _in_a_word(scheme: Scheme) -> str:
    return f"{scheme.multiple} outputs in a word"


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
