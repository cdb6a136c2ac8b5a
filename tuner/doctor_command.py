"""`flytune doctor`: what of this host decides a build, before hours are spent."""

import json
import os
from pathlib import Path

import click

MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


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

    Exits 1 if something is wrong, with a line for each.
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
    masks = {name: os.environ[name] for name in MASKS if name in os.environ}
    if len(set(masks.values())) > 1:
        text = ", ".join(f"{name}={value}" for name, value in masks.items())
        found.append(f"masks of devices contradict each other: {text}")
    return tuple(found)
