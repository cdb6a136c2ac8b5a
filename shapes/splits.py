"""What one tensor-parallel rank runs of a model's linears, by the engine's rules."""

from dataclasses import dataclass, replace

from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Experts, Linear, Units
from flytune.shapes.rules import RULES, Rule


class SplitError(FlytuneError):
    """The ranks asked for do not divide the model."""


@dataclass(frozen=True, slots=True)
class RankLinear:
    """`X [m, k] @ W.T` with W [n, k], as one rank holds it."""

    linear: Linear
    n: int
    k: int
    bias: bool
    rule: str
    batch: int = 1
    experts: int = 0
    """Of a mixture, those that this rank holds."""
    widths: tuple[int, ...] = ()
    """The outputs of each projection that is merged here; `n` is their sum."""


def split_linear(
    linear: Linear, engine: Engine, tp: int, ep: int = 1
) -> tuple[RankLinear, ...]:
    """Return what a rank runs: two rows where rank 0 alone adds the bias.

    Past one expert-parallel rank the experts are divided and whole.

    Raises:
        SplitError: the ranks do not divide a count of units, nor are a multiple of
            fewer kv heads where the engine replicates them; the message names the
            field.
    """
    rule = RULES[engine][linear.style]
    experts, expert_words = _experts(linear.experts, ep)
    ranks = 1 if linear.experts and ep > 1 else tp
    shares = [_share(units, rule, ranks, "columns") for units in linear.columns]
    n = sum(size for size, _ in shares)
    k, row_words = _share(linear.rows, rule, ranks, "rows")
    batch, batch_words = (1, "")
    if linear.batch is not None:
        batch = _divide(linear.batch, linear.batch.total, tp)
        batch_words = f"{linear.batch.words(batch, linear.batch.total)}: "
    if rule.divides == "rows":
        words = f"input {row_words}"
    else:
        words = " + ".join(
            f"{units.label} {share}".lstrip()
            for units, (_, share) in zip(linear.columns, shares, strict=True)
        )
    words = f"{batch_words}{words}{expert_words}"
    if engine == "vllm" or tp > 1:
        plan = (
            " tp_plan" if engine == "transformers" and rule.divides != "whole" else ""
        )
        words += f" ({linear.style}{plan})"
    if linear.note:
        words += f"; {linear.note}"
    outside = rule.bias == "outside" and tp > 1
    widths = tuple(size for size, _ in shares)
    bias = linear.bias and not outside
    part = RankLinear(linear, n, k, bias, words, batch, experts, widths)
    if not (part.bias and rule.bias == "rank 0" and tp > 1):
        return (part,)
    return (
        replace(part, rule=f"{words}, bias on rank 0"),
        replace(part, bias=False, rule=f"{words}, no bias on the other ranks"),
    )


def _experts(experts: Experts | None, ep: int) -> tuple[int, str]:
    """Return the experts that a rank holds and the rule's words of them."""
    if experts is None:
        return 0, ""
    if experts.total % ep:
        raise _indivisible(f"{ep} ranks do not divide the experts", experts.total, "ep")
    held = experts.total // ep
    words = f"{held} experts" if ep == 1 else f"{held} of {experts.total} experts"
    return held, f", {words}, {experts.per_token} a token"


def _share(units: Units, rule: Rule, tp: int, side: str) -> tuple[int, str]:
    """Return the elements that a rank holds, padding included, and the rule's words."""
    total = units.total
    if side == "columns" and total % rule.multiple:
        total += rule.multiple - total % rule.multiple
    if rule.divides != side:
        return total * units.size, units.words(total, total)
    if rule.replicates and units.name == "kv heads" and tp > total:
        if tp % total:
            fault = f"{tp} ranks are no multiple of {units.field}"
            raise _indivisible(fault, total)
        words = f"{units.words(1, total)}, each on {tp // total} ranks"
        return units.size, words
    held = _divide(units, total, tp)
    words = units.words(held, total)
    if total != units.total:
        words += f", padded from {units.total}"
    return held * units.size, words


def _divide(units: Units, total: int, tp: int) -> int:
    if total % tp:
        raise _indivisible(f"{tp} ranks do not divide {units.field}", total)
    return total // tp


def _indivisible(fault: str, total: int, option: str = "tp") -> SplitError:
    return SplitError(f"{fault}: `{total}`", hint=f"choose another --{option}")
