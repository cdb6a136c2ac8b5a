"""Gives each linear of a rank its scheme: a share for the layers that have one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flytune.shapes.gemm import GemmShape
from flytune.shapes.linears import Linear
from flytune.shapes.quant_fit import Ranks, fitted, fitted_plain
from flytune.shapes.quant_rule import Verdict
from flytune.shapes.quant_schemes import Scheme
from flytune.shapes.splits import RankLinear

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig
    from flytune.shapes.quantization import Quantization


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
        return tuple(Share(fitted_plain(part, ranks), None) for part in parts)
    found: list[Share] = []
    for part in parts:
        for verdict, layers in _schemes(config, quantization, part.linear, ranks):
            linear = replace(part.linear, layers=layers, count=max(len(layers), 1))
            held, scheme = replace(part, linear=linear), verdict.scheme
            words = quantization.plain
            if scheme is not None:
                held, scheme = fitted(held, scheme, ranks)
                words = scheme.words
            else:
                held = fitted_plain(held, ranks)
                words += f", {verdict.why}" if verdict.why else ""
            if layers and len(layers) < part.linear.count:
                words += f", {_ranges(layers)}"
            said = held.rule.removeprefix(part.rule)
            rule = f"{part.rule}; {words}{said}"
            found.append(Share(replace(held, rule=rule), scheme))
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
