"""The commands that read, install and run with a finished bundle."""

import json
import os
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from flytune.caches.directories import RUN_ONLY
from flytune.caches.found import installed_bundle
from flytune.caches.inspect import describe, summary
from flytune.caches.install import attempt, exec_environment, served_changes, status_of
from flytune.caches.prepare import Installed
from flytune.caches.trust import Trust
from flytune.shapes.errors import FlytuneError
from flytune.tuner.trust_options import trust_option, trust_options

_BUNDLE = click.argument("bundle", type=click.Path(readable=False, path_type=Path))
_INTO = click.option(
    "--into",
    type=click.Path(readable=False, path_type=Path, file_okay=False),
    help="Directory to install into [default: below $FLYTUNE_HOME or ~/.cache/flytune]",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line")


@click.command("inspect")
@_BUNDLE
@click.option("--check", is_flag=True, help="Check every file, and write none.")
@trust_option
@_JSON
def inspect_command(
    bundle: Path, check: bool, trusted: tuple[Path, ...], as_json: bool
) -> None:
    """Say what BUNDLE holds and who signed it, without loading any of it."""
    trust = Trust(trusted)
    if as_json:
        click.echo(json.dumps(summary(bundle, check=check, trust=trust)))
    else:
        click.echo(describe(bundle, check=check, trust=trust))


_INSTALLED = click.option(
    "--installed",
    is_flag=False,
    flag_value="",
    metavar="[MODEL]",
    help="Not BUNDLE, but the one for this host that a package of this environment "
    "brings.",
)


def _chosen(
    bundle: Path | None, installed: str | None
) -> tuple[Path, Callable[[], Path] | None]:
    """Return a bundle, or the name of one and what finds it."""
    if (bundle is None) == (installed is None):
        raise click.UsageError("give either BUNDLE or --installed")
    if bundle is not None:
        return bundle, None
    return Path("--installed"), partial(installed_bundle, installed or None)


@click.command("install")
@click.argument(
    "bundle", required=False, type=click.Path(readable=False, path_type=Path)
)
@_INSTALLED
@_INTO
@trust_options
@_JSON
def install_command(
    bundle: Path | None,
    installed: str | None,
    into: Path | None,
    trust: Trust,
    as_json: bool,
) -> None:
    """Check BUNDLE and put its caches in place; print what serving must set."""
    named, find = _chosen(bundle, installed)
    placed = attempt(named, into, strict=True, trust=trust, find=find)
    if as_json:
        click.echo(json.dumps(_row(placed)))
        return
    if placed.directory is None:
        return
    for name, value in served_changes(placed).items():
        if value is None:
            click.echo(f"unset {name}")
        else:
            click.echo(f"export {name}={shlex.quote(value)}")


@click.command("exec", context_settings={"ignore_unknown_options": True})
@_INSTALLED
@_INTO
@click.option(
    "--strict",
    is_flag=True,
    help="A bundle that is corrupt or for another target is an error, and so is a "
    "kernel that FlyDSL would have to compile.",
)
@trust_options
@click.argument(
    "words",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="[BUNDLE] -- COMMAND...",
)
def exec_command(
    installed: str | None,
    into: Path | None,
    strict: bool,
    trust: Trust,
    words: tuple[str, ...],
) -> None:
    """Run COMMAND with BUNDLE in place: `flytune exec B -- python serve.py`.

    A bundle that is corrupt or for another target is left out with one line, and
    COMMAND runs all the same, unless --strict is given.
    """
    # With --installed the first word is the command's own.
    first, command = (None, words) if installed is not None else (words[0], words[1:])
    if not command:
        raise click.UsageError("Missing argument 'COMMAND...'.")
    for word in (words[0], command[0]):
        # Unknown options are words here, as COMMAND has some; none begins with one.
        if word.startswith("-"):
            raise click.NoSuchOption(word)
    named, find = _chosen(None if first is None else Path(first), installed)
    placed = attempt(named, into, strict=strict, command=True, trust=trust, find=find)
    hit = placed.directory is not None
    if hit:
        # The command is this very process, and is found by the same number.
        status_of(placed).write()
    if placed.held >= 0:
        os.set_inheritable(placed.held, True)
    environment = exec_environment(placed) if hit else dict(os.environ)
    if strict:
        environment[RUN_ONLY] = "1"
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise FlytuneError(f"cannot run: {command[0]}: {error.strerror}") from error


def _row(installed: Installed) -> dict[str, object]:
    served = installed.directory is not None
    return {
        "bundle": str(installed.bundle),
        "status": installed.status,
        "code": installed.code,
        "reason": installed.reason,
        "directory": str(installed.directory) if served else None,
        "environment": served_changes(installed) if served else {},
        "parts": [
            {
                "part": result.part,
                "status": result.status,
                "built": result.built,
                "live": result.live,
            }
            for result in installed.parts
        ],
        "mended": list(installed.mended),
        "set_aside": list(installed.set_aside),
    }
