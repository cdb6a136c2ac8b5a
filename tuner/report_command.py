"""`flytune report`: charts and tables about bundles, as one HTML file."""

from pathlib import Path

import click

from flytune.caches.bundle import Bundle
from flytune.shapes.errors import about
from flytune.tuner.output_files import write_file


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
    type=click.Path(readable=False, path_type=Path, dir_okay=False),
    help="Where to write the page; a file that is there is replaced.",
)
def report_command(bundles: tuple[Path, ...], out: Path) -> None:
    """Write what BUNDLE holds and what its build found as one HTML page.

    The page needs no network. Several bundles are shown side by side, each against
    the first. Manifests and records are read; nothing of a bundle is loaded.
    """
    from flytune.caches.report.page import page_of

    page = page_of(list(map(_opened, bundles)))
    write_file(out, page)
    click.echo(f"{out}: {len(page.encode()) / 1e3:.0f} kB")


def _opened(path: Path) -> Bundle:
    with about(path):
        return Bundle.open(path)
