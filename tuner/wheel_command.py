"""`flytune wheel`: a bundle that pip installs."""

from pathlib import Path

import click

from flytune.caches.wheel import make_wheel


@click.command("wheel")
@click.argument("bundle", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--out",
    default=".",
    type=click.Path(readable=False, path_type=Path, file_okay=False),
    help="Directory to write into [default: this one]",
)
@click.option("--name", help="Of the distribution [default: flytune-MODEL-TARGET]")
@click.option("--version", help="Of it [default: the time that the bundle was made]")
def wheel_command(
    bundle: Path, out: Path, name: str | None, version: str | None
) -> None:
    """Write BUNDLE as a wheel, signature and all, and print its path.

    Where it is installed `flytune install --installed` finds the bundle.
    """
    click.echo(make_wheel(bundle, out, name=name, version=version))
