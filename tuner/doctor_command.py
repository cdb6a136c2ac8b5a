"""`flytune doctor`: what of this host decides a build, before hours are spent."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flytune.tuner.masks import confusion, contradiction

if TYPE_CHECKING:
    from flytune.caches.device_profile import DeviceProfile


@click.command("doctor")
@click.option(
    "--profile",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the first accelerator's profile, which --target takes on a host "
    "without one.",
)
def doctor_command(profile: Path | None) -> None:
    """Say what this host is, and whether flytune can work here.

    Exits 1 if something is wrong, with a line for each; what is only to be known is
    a note.
    """
    from flytune.caches.bundle import writing
    from flytune.caches.device_profile import live_profile
    from flytune.caches.target import Target
    from flytune.shapes.errors import FlytuneError
    from flytune.tuner.support import support_lines

    live = live_profile()
    if profile is not None:
        if live is None:
            raise FlytuneError("no accelerator here, or torch cannot use it")
        if profile.exists():
            raise FlytuneError(f"output exists: {profile}", hint="remove it")
        with writing(profile):
            profile.write_text(json.dumps(live.to_json(), indent=2) + "\n")
        click.echo(f"profile  {live.product}: {profile}")
        return
    target = Target.live("cpu" if live is None else live.kind, threads=None)
    for name, value in {**target.hardware, **target.software}.items():
        if value is not None:
            text = " ".join(value) if isinstance(value, tuple) else value
            click.echo(f"{name:<15} {text}")
    click.echo("\n" + "\n".join(support_lines()))
    for line in notes(live):
        click.echo(f"note: {line}", err=True)
    wrong = problems()
    for line in wrong:
        click.echo(f"wrong: {line}", err=True)
    if wrong:
        raise click.exceptions.Exit(1)


def problems() -> tuple[str, ...]:
    """Return what is wrong with this host's environment, a line each."""
    from flytune.caches.compat import require_torch
    from flytune.shapes.errors import FlytuneError

    found = []
    try:
        require_torch()
    except FlytuneError as error:
        found.append(str(error))
    found.append(contradiction(os.environ))
    return tuple(filter(None, found))


def notes(live: "DeviceProfile | None") -> tuple[str, ...]:
    """Return what is legal here and better known, a line each.

    Args:
        live: The accelerator at hand.
    """
    found = [confusion(os.environ)]
    if live is not None and live.vendor == "amd" and not live.board:
        found.append(
            "amdsmi, which comes with ROCm, tells nothing of this GPU: clocks, "
            "temperatures, throttling and partitions will not be recorded"
        )
    return tuple(filter(None, found))
