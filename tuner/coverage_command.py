"""`flytune coverage`: which of the GEMMs that a program ran a bundle holds."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from flytune.caches.bundle import Bundle
from flytune.caches.held import HeldGemms, Holding, held_gemms
from flytune.shapes.errors import FlytuneError
from flytune.shapes.logs.observed import ObservedGemm, ObservedGemms
from flytune.shapes.logs.read import FORMATS, read_log


@dataclass(frozen=True, slots=True)
class Covered:
    """The GEMMs of a log, and what a bundle has of each."""

    log: ObservedGemms
    rows: tuple[tuple[ObservedGemm, int, Holding], ...]
    """GEMM, calls and holding; the most frequent first."""
    unclear: bool
    """Whether the log counts tokens and the bundle does not say the rows of each."""

    @property
    def calls(self) -> int:
        """All calls that the log tells of."""
        return sum(calls for _, calls, _ in self.rows)

    @property
    def share(self) -> float:
        """The part of the calls whose GEMM the bundle holds, from 0 to 1."""
        held = sum(n for _, n, holding in self.rows if holding is not Holding.MISSING)
        return held / self.calls

    @classmethod
    def of(cls, log: ObservedGemms, held: HeldGemms) -> "Covered":
        """Compare a log with a bundle.

        Raises:
            FlytuneError: no row of the log is a GEMM.
        """
        if not log.rows:
            why = "; ".join(f"{n} {reason}" for reason, n in log.set_aside.items())
            raise FlytuneError(f"no GEMMs in log, {why or 'no row'}: `{log.source}`")
        unclear = held.experts_per_token is None and any(
            gemm.tokens is not None for gemm, _ in log.rows
        )
        rows = tuple((gemm, n, held.of(gemm)) for gemm, n in log.rows)
        return cls(log, rows, unclear)


def _number(_: click.Context, __: click.Parameter, value: float) -> float:
    """Refuse "nan", which no share is below.

    Raises:
        click.BadParameter: it is that.
    """
    if math.isnan(value):
        raise click.BadParameter("nan is not a share")
    return value


@click.command("coverage")
@click.argument("bundle", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--log",
    required=True,
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="What the program asked for: a file of `flytune capture`, a log or a table.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([one.name for one in FORMATS]),
    help="The log's form.  [default: by what it holds]",
)
@click.option(
    "--min",
    "least",
    type=click.FloatRange(0, 1),
    callback=_number,
    default=0,
    show_default=True,
    metavar="SHARE",
    help="Exit 1 where a smaller part of the calls is held.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON lines, one a GEMM.")
@click.pass_context
def coverage_command(
    context: click.Context,
    bundle: Path,
    log: Path,
    form: str | None,
    least: float,
    as_json: bool,
) -> None:
    """Say which of the GEMMs in a log BUNDLE holds, weighted by their calls.

    What is missing is listed, the most frequent first.
    """
    covered = Covered.of(read_log(log, form), held_gemms(Bundle.open(bundle)))
    if as_json:
        for gemm, calls, holding in covered.rows:
            row = {**gemm.to_row(), "count": calls, "holding": str(holding)}
            click.echo(json.dumps(row))
    else:
        click.echo("\n".join(_lines(covered)))
    if covered.share < least:
        click.echo(f"held {covered.share:.4f} of the calls, below {least}", err=True)
        context.exit(1)


def _lines(covered: Covered) -> Iterator[str]:
    kinds = Counter(holding for _, _, holding in covered.rows)
    known = len(covered.rows) - kinds[Holding.MISSING]
    yield (
        f"held     {known} of {len(covered.rows)} GEMMs, "
        f"{100 * covered.share:.1f}% of {covered.calls} calls"
    )
    if kinds[Holding.NO_CHOICE]:
        yield f"         {kinds[Holding.NO_CHOICE]} of them lowered without a choice"
    for gemm, calls, holding in covered.rows:
        if holding is Holding.MISSING:
            yield f"missing  {calls} x {gemm}"
    if covered.unclear:
        yield "aside    the bundle does not tell how many experts a token has"
    for reason, rows in covered.log.set_aside.items():
        yield f"aside    {rows} rows: {reason}"
