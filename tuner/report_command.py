"""`flytune report`: charts and tables about bundles, as one HTML file."""

import os
import sys
from pathlib import Path

import click

from flytune.caches.bundle import Bundle
from flytune.caches.output import write_through
from flytune.shapes.errors import about

_STDOUT = "-"


def _named(_: click.Context, __: click.Parameter, value: str) -> str:
    """Refuse an empty name, which a variable that is not set leaves.

    Raises:
        click.BadParameter: it is one.
    """
    if not value:
        raise click.BadParameter("empty: name a file, or - for stdout")
    return value


@click.command("report")
@click.argument(
    "bundles",
    nargs=-1,
    required=True,
    metavar="BUNDLE...",
    type=click.Path(readable=False, path_type=Path),
)
@click.option(
    "--html",
    "out",
    required=True,
    metavar="FILE",
    type=click.Path(readable=False, dir_okay=False),
    callback=_named,
    help="Where to write the page, - for stdout; a file that is there is replaced, a "
    "pipe or a device is written to.",
)
def report_command(bundles: tuple[Path, ...], out: str) -> None:
    """Write what BUNDLE holds and what its build found as one HTML page.

    The page needs no network. Several bundles are shown side by side, each against
    the first. Manifests and records are read; nothing of a bundle is loaded.
    """
    from flytune.caches.report.page import page_of

    page = page_of(list(map(_opened, bundles))).encode()
    if _is_stdout(out):
        click.echo(page, nl=False)
        return
    write_through(Path(out), page)
    click.echo(f"{out}: {len(page) / 1e3:.0f} kB")


def _opened(path: Path) -> Bundle:
    with about(path):
        return Bundle.open(path)


def _is_stdout(out: str) -> bool:
    """Whether a name is stdout's, where no other line may stand between the page's."""
    try:
        return out == _STDOUT or os.path.samestat(
            os.stat(out), os.fstat(sys.stdout.fileno())
        )
    except OSError:
        return False
