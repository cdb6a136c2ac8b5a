"""What one tensor-parallel rank runs of a model's linears, by engine.

Read from transformers 5.24 (`distributed/tensor_parallel.py`, the `tp_plan` of each
config and model) and vLLM 0.32 (`model_executor/layers/linear.py` and
`vocab_parallel_embedding.py`).
"""

from dataclasses import dataclass, replace
from itertools import groupby

from flytune.shapes.errors import FlytuneError
from flytune.shapes.linears import Linear, Split, decoder_linears
from flytune.shapes.model_config import ModelConfig

VOCABULARY_PADDING = 64
"""vLLM: `DEFAULT_VOCAB_PADDING_SIZE` of vocab_parallel_embedding.py."""

VLLM_LAYERS = {
    "qkv_proj": "QKVParallelLinear",
    "gate_up_proj": "MergedColumnParallelLinear",
    "o_proj": "RowParallelLinear",
    "down_proj": "RowParallelLinear",
    "lm_head": "ParallelLMHead",
}
"""vLLM's class of each layer, for the rule's words."""


class SplitError(FlytuneError):
    """The ranks asked for do not divide the model."""


@dataclass(frozen=True, slots=True)
class RankLinear:
    """`X [m, k] @ W.T` with W [n, k], as one rank holds it."""

    module: str
    n: int
    k: int
    bias: bool
    count: int
    rule: str


def split_transformers(config: ModelConfig, tp: int) -> tuple[RankLinear, ...]:
    """Split by transformers' own plan: nothing fused, replicated or padded.

    q, k, v, gate, up and the head are `colwise`, o and down `rowwise`. Where a size
    does not divide, transformers gives the last rank a shorter slice and a split head
    fails; both are refused here, as ranks would differ.

    Raises:
        SplitError: `tp` does not divide a head count, the intermediate size or the
            vocabulary; the message names the field.
    """
    parts: list[RankLinear] = []
    for linear in decoder_linears(config, "transformers"):
        split = linear.split
        total = _total(config, split)
        units = _divide(split, total, tp)
        n, k = _rank_size(linear, total, units)
        rule = _share(config, split, total, units)
        if tp > 1:
            rule += f" ({'rowwise' if split.by_rows else 'colwise'} tp_plan)"
        # RowwiseParallel adds the bias after the sum over ranks, outside the GEMM.
        bias = linear.bias and not (split.by_rows and tp > 1)
        parts.append(RankLinear(linear.module, n, k, bias, linear.count, rule))
    return tuple(parts)


def split_vllm(config: ModelConfig, tp: int) -> tuple[RankLinear, ...]:
    """Split, fuse, replicate and pad as vLLM does.

    - qkv (`QKVParallelLinear`): q, k and v in one; past the number of kv heads each
      rank holds one and `tp / num_key_value_heads` ranks hold the same.
    - gate_up (`MergedColumnParallelLinear`): gate and up in one.
    - o, down (`RowParallelLinear`): the bias is in rank 0's GEMM alone, so such a
      layer has a row for rank 0 and one for the others.
    - lm_head (`ParallelLMHead`): the vocabulary padded to a multiple of 64.

    Raises:
        SplitError: `tp` does not divide a head count, the intermediate size or the
            padded vocabulary, nor is a multiple of fewer kv heads.
    """
    linears = decoder_linears(config, "vllm")
    runs = groupby(linears, key=lambda linear: linear.fused or linear.module)
    parts: list[RankLinear] = []
    for _, run in runs:
        parts.extend(_vllm_layer(config, tuple(run), tp))
    return tuple(parts)


def _vllm_layer(
    config: ModelConfig, linears: tuple[Linear, ...], tp: int
) -> tuple[RankLinear, ...]:
    first = linears[0]
    path, _, leaf = first.module.rpartition(".")
    shares: list[str] = []
    n = k = 0
    for linear in linears:
        units, share = _vllm_share(config, linear.split, tp)
        rank_n, k = _rank_size(linear, _total(config, linear.split), units)
        n += rank_n
        shares.append(f"{linear.module.rpartition('.')[2]} {share}")
    if first.fused:
        leaf = first.fused
    rule = f"{' + '.join(shares) if first.fused else share} ({VLLM_LAYERS[leaf]})"
    module = f"{path}.{leaf}" if path else leaf
    part = RankLinear(module, n, k, first.bias, first.count, rule)
    if not (first.bias and first.split.by_rows and tp > 1):
        return (part,)
    return (
        replace(part, rule=f"{rule}, bias on rank 0"),
        replace(part, bias=False, rule=f"{rule}, no bias on the other ranks"),
    )


def _vllm_share(config: ModelConfig, split: Split, tp: int) -> tuple[int, str]:
    """Return the units that a rank holds, padding included, and the rule's words."""
    total = _total(config, split)
    if split is Split.KV_HEADS and tp > total:
        if tp % total:
            raise _indivisible(f"{tp} ranks are no multiple of {split.field}", total)
        return 1, f"{_share(config, split, total, 1)}, each on {tp // total} ranks"
    if split is Split.VOCABULARY:
        padded = -(-total // VOCABULARY_PADDING) * VOCABULARY_PADDING
        units = _divide(split, padded, tp)
        words = _share(config, split, padded, units)
        return units, words if padded == total else f"{words}, padded from {total}"
    units = _divide(split, total, tp)
    return units, _share(config, split, total, units)


def _total(config: ModelConfig, split: Split) -> int:
    total = getattr(config, split.field)
    assert isinstance(total, int)
    return total


def _divide(split: Split, total: int, tp: int) -> int:
    if total % tp:
        raise _indivisible(f"{tp} ranks do not divide {split.field}", total)
    return total // tp


def _indivisible(fault: str, total: int) -> SplitError:
    return SplitError(f"{fault}: `{total}`", hint="choose another --tp")


def _rank_size(linear: Linear, total: int, units: int) -> tuple[int, int]:
    """Return (n, k) with `units` of the `total` units of the side that is split."""
    if linear.split.by_rows:
        return linear.out_features, linear.in_features // total * units
    return linear.out_features // total * units, linear.in_features


def _share(config: ModelConfig, split: Split, total: int, units: int) -> str:
    words = f"{total} {split.unit}"
    if units != total:
        words = f"{units} of {words}"
    if split in (Split.HEADS, Split.KV_HEADS, Split.HEAD_ROWS):
        words += f" x {config.head_dim}"
    return f"input {words}" if split.by_rows else words
