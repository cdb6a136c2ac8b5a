"""`flytune shapes`: the GEMMs that a model runs, a line each."""

import json
from pathlib import Path
from typing import get_args

import click

from flytune.shapes.by_hand import read_by_hand
from flytune.shapes.derive import Attention, ExpertCalls
from flytune.shapes.gemm import Engine, GemmShape, Platform
from flytune.shapes.plan import plan_shapes
from flytune.shapes.quant_schemes import Quant
from flytune.shapes.registry import find_model
from flytune.tuner.token_options import tokens_option

model_option = click.option(
    "--model",
    help="A shipped name, a config.json or its folder, or a Hugging Face id.",
)
shapes_option = click.option(
    "--shapes",
    "by_hand",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="The GEMMs themselves instead of a model, a CSV file or JSON lines with the "
    "names that `flytune shapes --json` prints; without m, one for each of --tokens.",
)
tp_option = click.option(
    "--tp",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Tensor-parallel ranks; the sizes are one rank's.",
)
ep_option = click.option(
    "--ep",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Expert-parallel ranks; past one, each holds whole experts.",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["transformers", "vllm"]),
    default="transformers",
    show_default=True,
    help="Whose program runs the model.",
)
quant_option = click.option(
    "--quant",
    type=click.Choice(get_args(Quant)),
    help="Scheme of the layers' linears; head and routers stay.  [default: the "
    "model's own]",
)


OF_A_MODEL = ("tp", "ep", "quant", "experts", "attention")
"""Options that a file of shapes, or a command, leaves nothing to say for."""


def is_given(name: str) -> bool:
    """Whether the user gave an option of the command that runs."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def check_model(model: str | None, by_hand: Path | None) -> None:
    """Refuse both and none of the options that say what is planned.

    Raises:
        click.UsageError: both or none are there, or one that is of a model alone stands
            beside a file of shapes.
    """
    if model is None and by_hand is None:
        raise click.UsageError("give --model or --shapes")
    if model is not None and by_hand is not None:
        raise click.UsageError("give --model or --shapes, and not both")
    for name in OF_A_MODEL if by_hand is not None else ():
        if is_given(name):
            raise click.UsageError(f"--{name} is of --model: a file of shapes says it")


@click.command("shapes")
@model_option
@shapes_option
@tp_option
@ep_option
@engine_option
@tokens_option
@click.option(
    "--attention",
    type=click.Choice(["sdpa", "eager"]),
    default="sdpa",
    show_default=True,
    help="eager adds the two bmm of each layer; sdpa is one fused kernel, no GEMM.",
)
@quant_option
@click.option(
    "--experts",
    type=click.Choice(get_args(ExpertCalls)),
    default="grouped",
    show_default=True,
    help="grouped: one GEMM of all experts on a rank; each: one of each with tokens.",
)
@click.option(
    "--platform",
    type=click.Choice(get_args(Platform)),
    default="cuda",
    show_default=True,
    help="Where it is served, which decides how the GEMMs are reached.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout.")
def shapes_command(
    model: str | None,
    by_hand: Path | None,
    tp: int,
    ep: int,
    engine: Engine,
    tokens: tuple[int, ...],
    attention: Attention,
    quant: Quant | None,
    experts: ExpertCalls,
    platform: Platform,
    as_json: bool,
) -> None:
    """List the GEMMs that a model runs on one rank.

    The sizes are worked out from the config and checked against transformers' own
    model, built without memory.
    """
    check_model(model, by_hand)
    if engine == "vllm" and attention == "eager":
        raise click.UsageError("--attention eager needs --engine transformers")
    if by_hand is not None:
        anew = is_given("platform")
        shapes = read_by_hand(by_hand, tokens, platform, engine, anew=anew).shapes
    else:
        assert model is not None, "refused above"
        config = find_model(model)
        shapes = plan_shapes(
            config,
            tp=tp,
            ep=ep,
            engine=engine,
            tokens=tokens,
            attention=attention,
            quant=quant,
            experts=experts,
            platform=platform,
        )
        if not config.traceable:
            note = "transformers has no model of it without remote code"
            click.echo(f"not traced, {note}: {config.architecture}", err=True)
    if as_json:
        for shape in shapes:
            click.echo(json.dumps(shape.to_row()))
    else:
        click.echo(_table(shapes))


_BATCH = "batch/groups"


def _table(shapes: tuple[GemmShape, ...]) -> str:
    """Align the columns: numbers to the right, words to the left."""
    header = ("op", "m", "n", "k", _BATCH, "dtype", "count", "reach", "module", "rule")
    numbers = {"m", "n", "k", _BATCH, "count"}
    rows = [header, *(_cells(shape) for shape in shapes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = (
            cell.rjust(width) if title in numbers else cell.ljust(width)
            for title, cell, width in zip(header, row, widths, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _cells(shape: GemmShape) -> tuple[str, ...]:
    sizes = (shape.m, shape.n, shape.k, shape.groups or shape.batch)
    return (
        shape.op,
        *map(str, sizes),
        shape.scaling or shape.out_dtype,
        str(shape.count),
        shape.reach,
        shape.module,
        shape.rule,
    )
