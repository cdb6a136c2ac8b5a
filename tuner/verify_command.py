"""`flytune verify`: prove in a fresh process that a bundle hits."""

import json
from pathlib import Path

import click

from flytune.caches.trust import Trust
from flytune.tuner.trust_options import trust_options


@click.command("verify")
@click.argument("bundle", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--strict",
    is_flag=True,
    help="Fail too where torch itself refuses to cache a graph.",
)
@trust_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def verify_command(bundle: Path, strict: bool, trust: Trust, as_json: bool) -> None:
    """Run the bundle's program in a fresh process with an empty cache directory.

    Exits 0 only if nothing was tuned or compiled, nothing was lowered but graphs that
    torch itself refuses to cache, and the outputs are those of eager under other
    weights. Of a bundle that was only compiled, FlyDSL's kernels are looked up.
    """
    from flytune.caches.bundle import Bundle
    from flytune.caches.verify import verify
    from flytune.caches.verify_kernels import verify_kernels
    from flytune.tuner.summary import verdict_lines

    opened = Bundle.open(bundle)
    only_kernels = opened.manifest.compiled_only
    verdict = (verify_kernels if only_kernels else verify)(opened, trust)
    passed = verdict.ok(strict=strict)
    if as_json:
        click.echo(json.dumps({**verdict.to_json(), "ok": passed, "strict": strict}))
    else:
        click.echo("\n".join(verdict_lines(verdict)))
    if not passed:
        raise click.exceptions.Exit(1)
