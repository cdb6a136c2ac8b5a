"""The GEMMs to tune for a model: arithmetic, held against the traced model."""

import re
from collections import defaultdict

from flytune.shapes.derive import Attention, Quant, derive_shapes
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import Engine, GemmShape
from flytune.shapes.model_config import ModelConfig
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
    quant: Quant | None = None,
    trace: bool = True,
) -> tuple[GemmShape, ...]:
    """Derive one rank's GEMMs and check the model under them.

    The trace is of the whole model in transformers, so it checks the arithmetic
    before any split or fusion, at the least and the most tokens: every size is linear
    in the count. Quantising changes no size, and the trace is of the model as it is.
    `tokens` is not empty. `trace=False` trusts arithmetic, for where transformers is
    not installed.

    Raises:
        ShapeMismatchError: arithmetic and trace differ; the message names the layer.
        FlytuneError: as `derive_shapes` and `trace_gemms` raise it.
    """
    shapes = derive_shapes(
        model,
        tp=tp,
        engine=engine,
        tokens=tokens,
        attention=attention,
        quant=quant,
    )
    if trace:
        for count in sorted({min(tokens), max(tokens)}):
            check_against_trace(
                derive_shapes(
                    model,
                    tp=1,
                    engine="transformers",
                    tokens=(count,),
                    attention=attention,
                ),
                trace_gemms(model, count, attention),
            )
    return shapes


def check_against_trace(
    derived: tuple[GemmShape, ...], traced: tuple[TracedGemm, ...]
) -> None:
    """Compare unsplit arithmetic for one token count with the trace of that count.

    Raises:
        ShapeMismatchError: a layer's GEMMs differ in op, size, dtype, layout or bias,
            a layer has GEMMs on one side alone, or their number differs.
    """
    expected: dict[str, list[GemmShape]] = defaultdict(list)
    for shape in derived:
        expected[shape.module].append(shape)
    seen: dict[str, list[TracedGemm]] = defaultdict(list)
    for gemm in traced:
        seen[gemm.module].append(gemm)
    layers: dict[str, int] = dict.fromkeys(expected, 0)
    for module, gemms in seen.items():
        pattern = re.sub(r"\.\d+(?=\.)", ".*", module)
        if pattern not in expected:
            raise _mismatch(module, "nothing", _words(gemms[0]))
        _compare_layer(module, expected[pattern], gemms)
        layers[pattern] += 1
    for pattern, count in layers.items():
        if count != expected[pattern][0].count:
            calls = f"{expected[pattern][0].count} calls"
            raise _mismatch(pattern, calls, f"{count} calls")


def _compare_layer(
    module: str, shapes: list[GemmShape], gemms: list[TracedGemm]
) -> None:
    if len(shapes) != len(gemms):
        raise _mismatch(module, f"{len(shapes)} GEMMs", f"{len(gemms)} GEMMs")
    for shape, gemm in zip(shapes, gemms, strict=True):
        same = (
            _facts(shape) == _facts(gemm)
            and shape.bias == gemm.bias
            and shape.layout in gemm.layouts
        )
        if not same:
            raise _mismatch(module, _words(shape), _words(gemm))


def _facts(gemm: GemmShape | TracedGemm) -> tuple[str | int, ...]:
    sizes = (gemm.op, gemm.batch, gemm.m, gemm.n, gemm.k)
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
