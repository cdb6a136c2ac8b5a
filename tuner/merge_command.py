"""`flytune merge`: bundles for one target as one."""

import json
import sys
from pathlib import Path

import click

from flytune.caches.keyring import own_key
from flytune.caches.provenance import provenance
from flytune.caches.trust import Trust
from flytune.tuner.trust_options import trust_options


@click.command("merge")
@click.argument(
    "bundles",
    nargs=-1,
    required=True,
    type=click.Path(readable=False, path_type=Path),
    metavar="B...",
)
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(readable=False, path_type=Path),
    help="A directory, or a .tar.zst",
)
@trust_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout")
def merge_command(
    bundles: tuple[Path, ...], out: Path, trust: Trust, as_json: bool
) -> None:
    """Join bundles for one target: ranks, models and token counts.

    Each must be signed by a key that is trusted here, and your own signs the result.
    Every file of each is kept. Where two have the same file with other contents, what
    was kept is said, and stands in the manifest; the newest goes first. Bundles for
    other targets or policies are refused.
    """
    from flytune.caches.merge import merge

    # Nobody's key vouches for what was joined whoever made it.
    keys = () if trust.allow_unsigned else (own_key(),)
    command = ("flytune", *sys.argv[1:])
    merged = merge(bundles, out, trust=trust, provenance=provenance(command), keys=keys)
    if as_json:
        click.echo(json.dumps(merged.to_json()))
        return
    lines = [("merged" if not n else "", part) for n, part in enumerate(merged.parts)]
    lines.append(("files", str(len(merged.manifest.files))))
    lines += [("conflict", line) for line in merged.conflicts]
    lines.append(("bundle", f"{out}, not verified: flytune verify {out}"))
    click.echo("\n".join(f"{name:<10}{text}" for name, text in lines))
