"""`flytune check`: whether a new bundle serves worse than a baseline."""

import datetime
import json
import math
import sys
from pathlib import Path
from typing import Any

import click

from flytune.caches.output import check_writable, write_through
from flytune.caches.regression.again import Retime
from flytune.caches.regression.annotations import annotations
from flytune.caches.regression.check import Check, Settings, check
from flytune.caches.regression.junit import junit
from flytune.caches.regression.limits import Limits, Threshold, read_limits, share
from flytune.caches.regression.markdown import markdown
from flytune.caches.regression.rows import rows
from flytune.caches.regression.serving import Serving
from flytune.caches.regression.sides import Side
from flytune.caches.regression.table import text
from flytune.caches.trust import HERE, Trust, admit
from flytune.tuner.signals import ended_by_signals
from flytune.tuner.trust_options import trust_options


class _Share(click.ParamType[float]):
    """A share: "3%" or 0.03."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number.

        Raises:
            click.BadParameter: it is none, or below zero.
        """
        try:
            return share(str(value))
        except ValueError:
            self.fail(f"`{value}` is no share: write 3% or 0.03", param, ctx)


_FILE = click.Path(dir_okay=False, path_type=Path)


def _number(_: click.Context, __: click.Parameter, value: float) -> float:
    """Refuse "nan" and "inf".

    Raises:
        click.BadParameter: it is one of them.
    """
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no time")
    return value


@click.command("check")
@click.argument("new", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--baseline",
    required=True,
    type=click.Path(readable=False, path_type=Path),
    metavar="OLD",
    help="The bundle that is served now.",
)
@click.option(
    "--max-regression",
    type=_Share(),
    default=f"{Settings().threshold.max_regression:.0%}",
    show_default=True,
    help="By how much a list, or a forward pass, may get slower.",
)
@click.option(
    "--floor-us",
    type=click.FloatRange(min=0),
    callback=_number,
    metavar="US",
    default=Settings().threshold.floor_us,
    show_default=True,
    help="A difference below so many microseconds is none.",
)
@click.option(
    "--max-growth",
    type=_Share(),
    default=f"{Settings().max_growth:.0%}",
    show_default=True,
    help="By how much the bundle may grow, in bytes and in files.",
)
@click.option(
    "--serving-policy",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="What serving runs under: the JSON of a manifest's policy, or a bundle.  "
    "[default: the baseline's]",
)
@click.option(
    "--limits",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="TOML: thresholds by shape, and waivers until a date.",
)
@click.option(
    "--retime",
    is_flag=True,
    help="Time both bundles' winners side by side on the device at hand, where the "
    "times on record decide nothing. Runs both: they must be trusted.",
)
@trust_options
@click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout.")
@click.option("--junit", "junit_file", type=_FILE, metavar="FILE", help="JUnit XML.")
@click.option(
    "--markdown",
    "markdown_file",
    type=_FILE,
    metavar="FILE",
    help="A summary for a pull request, written where there is a result.",
)
@click.option(
    "--github/--no-github",
    envvar="GITHUB_ACTIONS",
    help="Annotations of a workflow's run, on stderr.  [default: where GITHUB_ACTIONS "
    "is true]",
)
@click.option(
    "--undecided",
    type=click.Choice(("fail", "pass")),
    default="fail",
    show_default=True,
    help="What the run does where the exit code is 3: fail, and annotations say why as "
    "errors, or pass, and they are warnings. The exit code is the same.",
)
@click.pass_context
def check_command(
    context: click.Context,
    new: Path,
    baseline: Path,
    max_regression: float,
    floor_us: float,
    max_growth: float,
    serving_policy: Path | None,
    limits: Path | None,
    retime: bool,
    trust: Trust,
    as_json: bool,
    junit_file: Path | None,
    markdown_file: Path | None,
    github: bool,
    undecided: str,
) -> None:
    """Say whether NEW serves worse than a baseline: slower, bigger or colder.

    Manifests and records alone are read: neither bundle is run, and neither need be
    trusted, but for --retime.

    Exits 0 if it is fine, 1 on a regression, 3 if the times on record decide nothing;
    with --retime, if something could not be decided on the device at hand. An error
    exits 1 too; then FILE of --markdown is not written.
    """
    settings = Settings(
        threshold=Threshold(max_regression, floor_us),
        max_growth=max_growth,
        serving=None if serving_policy is None else Serving.read(serving_policy),
        limits=Limits() if limits is None else read_limits(limits),
    )
    today = datetime.datetime.now(datetime.UTC).date()
    if trust != HERE and not retime:
        raise click.UsageError("whom to trust is asked with --retime alone")
    for path in filter(None, (junit_file, markdown_file)):
        check_writable(path)
    sides = Side.open(new), Side.open(baseline)
    with ended_by_signals():
        again = _retimer(*sides, trust) if retime else None
        checked = check(*sides, settings, today, again)
    # Printed first: whatever becomes of the files, the result is not lost.
    _show(checked, as_json)
    if github:
        for line in annotations(checked, undecided_passes=undecided == "pass"):
            click.echo(line, err=True)
    if junit_file is not None:
        write_through(junit_file, junit(checked).encode())
    # The last of all: by it ci/gate/gate.sh knows that nothing went wrong before.
    if markdown_file is not None:
        write_through(markdown_file, markdown(checked).encode())
    context.exit(int(checked.outcome))


def _retimer(new: Side, baseline: Side, trust: Trust) -> Retime:
    """Return what times both bundles' winners.

    Raises:
        FlytuneError: one of them is not trusted here.
    """
    from flytune.tuner.progress import Progress
    from flytune.tuner.retime import Retimer

    for side in (new, baseline):
        admit(side.bundle, trust)
    return Retimer(new, baseline, Progress())


def _show(checked: Check, as_json: bool) -> None:
    if as_json:
        for row in rows(checked):
            click.echo(json.dumps(row, allow_nan=False))
    elif sys.stdout.isatty():
        from flytune.caches.regression.terminal import show

        show(checked)
    else:
        click.echo(text(checked))
