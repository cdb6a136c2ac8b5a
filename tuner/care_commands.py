"""The commands that look after what is installed: why, installed, gc."""

import datetime
import json
from pathlib import Path

import click

from flytune.caches.installed import Cleared, InstalledBundle, clear, installed_bundles
from flytune.caches.why import describe, of_directory, of_process, processes
from flytune.shapes.errors import FlytuneError

_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line")


@click.command("why")
@click.argument("what", metavar="[PID|DIR]", required=False)
@_JSON
def why_command(what: str | None, as_json: bool) -> None:
    """Say what became of the bundle in the process PID, or of the installed DIR.

    Without either the processes are listed that a bundle was installed for. Files of
    theirs are below $FLYTUNE_HOME/status, or in $FLYTUNE_STATUS_DIR.
    """
    if what is None:
        rows = processes()
        for row in rows:
            words = (str(row["pid"]), row["state"], row.get("code", ""))
            running = "running" if row["alive"] else "ended"
            text = f"{words[0]:<8} {running:<8} {words[1]:<9} {words[2]:<6} "
            click.echo(
                json.dumps(row) if as_json else text + str(row.get("command", ""))
            )
        return
    row = of_process(int(what)) if what.isdecimal() else of_directory(_folder(what))
    click.echo(json.dumps(row) if as_json else describe(row))


@click.command("installed")
@_JSON
def installed_command(as_json: bool) -> None:
    """List the installed bundles, the last used first."""
    for one in installed_bundles():
        click.echo(json.dumps(_row(one)) if as_json else _line(one))


@click.command("gc")
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="How many stay that no process serves from, the last used ones.",
)
@click.option("--dry-run", is_flag=True, help="Remove nothing; say what would be.")
@_JSON
def gc_command(keep: int, dry_run: bool, as_json: bool) -> None:
    """Remove installed bundles that were not used for longest, and leftovers.

    A bundle that a running process serves from stays whatever --keep says.
    """
    cleared = clear(keep, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps(_cleared_row(cleared, dry_run)))
        return
    verb = "would remove" if dry_run else "removed"
    for one in cleared.bundles:
        click.echo(f"{verb} {_line(one)}")
    if cleared.leftovers:
        click.echo(f"{verb} {len(cleared.leftovers)} leftovers of ended processes")
    if cleared.blobs:
        click.echo(f"{verb} {len(cleared.blobs)} blobs that were fetched")


def _folder(what: str) -> Path:
    if not Path(what).is_dir():
        raise FlytuneError(f"neither a process nor an installed directory: {what}")
    return Path(what)


def _line(one: InstalledBundle) -> str:
    used = datetime.datetime.fromtimestamp(one.used).strftime("%Y-%m-%d %H:%M")
    state = "in use" if one.in_use else used
    size = f"{one.size_bytes / 1e6:.1f} MB"
    return (
        f"sha256:{one.digest[:16]}  {state:<16}  {size:>9}  {one.model}  {one.target}"
    )


def _row(one: InstalledBundle) -> dict[str, object]:
    used = datetime.datetime.fromtimestamp(one.used, datetime.UTC)
    return {
        "digest": one.digest,
        "directory": str(one.directory),
        "model": one.model,
        "target": one.target,
        "size_bytes": one.size_bytes,
        "used": used.isoformat(timespec="seconds"),
        "in_use": one.in_use,
    }


def _cleared_row(cleared: Cleared, dry_run: bool) -> dict[str, object]:
    return {
        "removed": [_row(one) for one in cleared.bundles],
        "leftovers": list(cleared.leftovers),
        "blobs": list(cleared.blobs),
        "dry_run": dry_run,
    }
