"""`flytune verify`: prove in a fresh process that a bundle hits."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flytune.caches.trust import Trust
from flytune.tuner.signals import ended_by_signals
from flytune.tuner.trust_options import trust_options

if TYPE_CHECKING:
    from flytune.caches.bundle import Bundle
    from flytune.caches.verdict import Verdict


@click.command("verify")
@click.argument("bundle", type=click.Path(readable=False, path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option(
    "--strict",
    is_flag=True,
    help="Fail too where torch itself refuses to cache a graph.",
)
@trust_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def verify_command(
    bundle: Path, command: tuple[str, ...], strict: bool, trust: Trust, as_json: bool
) -> None:
    """Run the bundle's program in a fresh process with an empty cache directory.

    Exits 0 only if nothing was tuned or compiled, nothing was lowered but graphs that
    torch itself refuses to cache, and the outputs are those of eager under other
    weights. Of a bundle that was only compiled, FlyDSL's kernels are looked up.

    With COMMAND, that is run instead as `flytune exec` would run it, and each of its
    Python processes must find all that it compiles in the bundle.
    """
    from flytune.caches.bundle import Bundle

    opened = Bundle.open(bundle)
    with ended_by_signals():
        verdict = _verdict(opened, command, trust)
    passed = verdict.ok(strict=strict)
    if as_json:
        row = {**verdict.to_json(), "ok": passed, "strict": strict}
        click.echo(json.dumps({**row, "processes": list(verdict.processes)}))
    else:
        from flytune.tuner.summary import verdict_lines

        click.echo("\n".join(verdict_lines(verdict)))
    if not passed:
        raise click.exceptions.Exit(1)


def _verdict(opened: "Bundle", command: tuple[str, ...], trust: Trust) -> "Verdict":
    from flytune.caches.verify import verify
    from flytune.caches.verify_command import verify_command
    from flytune.caches.verify_kernels import verify_kernels

    if command:
        return verify_command(opened, command, trust)
    only_kernels = opened.manifest.compiled_only
    return (verify_kernels if only_kernels else verify)(opened, trust)
