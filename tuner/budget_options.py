"""The options of a build that say what it may cost."""

import os
from collections.abc import Callable
from typing import Any

import click

from flytune.tuner.budget import Budget, parse_budget

PASSED = "FLYTUNE_PASSED_S"
"""A variable: what had passed of the command that began this build elsewhere."""


def budget_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `budget` and `gpu_hour_price`, either None where not given."""
    for option in (_PRICE, _BUDGET):
        command = option(command)
    return command


def _parsed(_: click.Context, __: click.Parameter, value: str | None) -> Budget | None:
    if value is None:
        return None
    try:
        return parse_budget(value).after(float(os.environ.get(PASSED, 0)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_BUDGET = click.option(
    "--budget",
    metavar="30m|4gpu-h|$20",
    callback=_parsed,
    help="What the build may take, from its start to its bundle: s, m or h, GPU hours, "
    "or a cost. The lists that cost a forward pass most are tuned first; what is not "
    "reached gets the library's kernel, and the same command goes on from there.",
)
_PRICE = click.option(
    "--gpu-hour-price",
    type=click.FloatRange(min=0, min_open=True),
    metavar="PRICE",
    help="Of one GPU for an hour: the estimate says what the build costs.",
)
