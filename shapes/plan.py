"""The GEMMs to tune for a model: arithmetic, held against the traced model."""

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from flytune.shapes.derive import Attention, ExpertCalls, derive_shapes
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import Engine, GemmShape, Platform
from flytune.shapes.model_config import ModelConfig
from flytune.shapes.quant_schemes import Quant
from flytune.shapes.reach import with_reach
from flytune.shapes.trace import TracedGemm, trace_gemms


class ShapeMismatchError(FlytuneError):
    """The config's arithmetic and the traced model disagree at a layer."""


def plan_shapes(
    model: ModelConfig,
    *,
    tp: int,
    engine: Engine,
    tokens: tuple[int, ...],
    attention: Attention = "sdpa",
    ep: int = 1,
    quant: Quant | None = None,
    experts: ExpertCalls = "grouped",
    platform: Platform = "cuda",
    trace: bool = True,
) -> tuple[GemmShape, ...]:
    """Derive one rank's GEMMs and check the model under them.

    The trace is of the whole model in transformers, so it checks the arithmetic
    before any split or fusion, at the least and the most tokens: every size is linear
    in the count. What quantising pads and calling experts one by one come after it: the
    trace is of the model as it is, dequantised.
    `tokens` is not empty. A model that transformers runs by remote code alone is not
    traced, as its rows say; `trace=False` trusts arithmetic, for where transformers is
    not installed.

    Args:
        platform: Where it is served, which decides how each GEMM is reached.

    Raises:
        ShapeMismatchError: arithmetic and trace differ; the message names the layer.
        FlytuneError: as `derive_shapes` and `trace_gemms` raise it.
    """
    shapes = derive_shapes(
        model,
        tp=tp,
        ep=ep,
        engine=engine,
        tokens=tokens,
        attention=attention,
        quant=quant,
        experts=experts,
        platform=platform,
    )
    shapes = with_reach(shapes, platform, model.architecture, model.quantised)
    if not (trace and model.traceable):
        return shapes
    plain = replace(model, quantised="", quantization="")
    for count in sorted({min(tokens), max(tokens)}):
        whole = derive_shapes(
            plain, tp=1, engine="transformers", tokens=(count,), attention=attention
        )
        check_against_trace(whole, trace_gemms(model, count, attention))
    return tuple(replace(shape, traced=True) for shape in shapes)


def check_against_trace(
    derived: tuple[GemmShape, ...], traced: tuple[TracedGemm, ...]
) -> None:
    """Compare unsplit arithmetic for one token count with the trace of that count.

    Layers of several kinds may call the same module with sizes of their own; each of
    the sizes must have as many calls on both sides.

    Raises:
        ShapeMismatchError: a layer's GEMMs differ in op, size, dtype, layout or bias,
            a layer has GEMMs on one side alone, or their number differs.
    """
    expected: dict[str, list[_Calls]] = defaultdict(list)
    for shape in derived:
        expected[shape.module].append(_Calls(shape, shape.count))
    for gemm in traced:
        pattern = re.sub(r"\.\d+(?=\.)", ".*", gemm.module)
        if pattern not in expected:
            raise _mismatch(gemm.module, "nothing", _words(gemm))
        same = [calls for calls in expected[pattern] if _agree(calls.shape, gemm)]
        if not same:
            ours = " or ".join(_words(calls.shape) for calls in expected[pattern])
            raise _mismatch(gemm.module, ours, _words(gemm))
        # The first that lacks calls: sizes may leave two of one module alike.
        next((c for c in same if c.seen < c.count), same[0]).seen += gemm.count
    for pattern, each in expected.items():
        for calls in each:
            if calls.seen != calls.count:
                raise _mismatch(pattern, f"{calls.count} calls", f"{calls.seen} calls")


@dataclass(slots=True)
class _Calls:
    """A planned GEMM, its calls by arithmetic and those in the trace."""

    shape: GemmShape
    count: int
    seen: int = 0


def _agree(shape: GemmShape, gemm: TracedGemm) -> bool:
    return (
        _facts(shape) == _facts(gemm)
        and shape.bias == gemm.bias
        and shape.layout in gemm.layouts
    )


def _facts(gemm: GemmShape | TracedGemm) -> tuple[str | int, ...]:
    sizes = (gemm.op, gemm.batch, gemm.groups, gemm.m, gemm.n, gemm.k)
    return (*sizes, gemm.a_dtype, gemm.b_dtype, gemm.out_dtype)


def _words(gemm: GemmShape | TracedGemm) -> str:
    layouts = (gemm.layout,) if isinstance(gemm, GemmShape) else gemm.layouts
    lead = f"{gemm.batch}x" if gemm.op == "bmm" else ""
    sizes = f"{gemm.op} {lead}({gemm.m}, {gemm.n}, {gemm.k})"
    return f"{sizes} {gemm.out_dtype} {'/'.join(layouts)}"


def _mismatch(module: str, derived: str, traced: str) -> ShapeMismatchError:
    return ShapeMismatchError(
        f"config and model disagree, {derived} by arithmetic and {traced} in "
        f"transformers' model: `{module}`",
        hint="is the config the one that the installed transformers expects?",
    )
