"""`flytune merge`: bundles for one target as one."""

import json
from pathlib import Path

import click


@click.command("merge")
@click.argument(
    "bundles", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="B..."
)
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="A directory, or a .tar.zst",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout")
def merge_command(bundles: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Join bundles for one target: ranks, models and token counts.

    Every file of each is kept. Where two have the same file with other contents, what
    was kept is said, and stands in the manifest; the newest goes first. Bundles for
    other targets or policies are refused.
    """
    from flytune.caches.merge import merge

    merged = merge(bundles, out)
    if as_json:
        click.echo(json.dumps(merged.to_json()))
        return
    lines = [("merged" if not n else "", part) for n, part in enumerate(merged.parts)]
    lines.append(("files", str(len(merged.manifest.files))))
    lines += [("conflict", line) for line in merged.conflicts]
    lines.append(("bundle", f"{out}, not verified: flytune verify {out}"))
    click.echo("\n".join(f"{name:<10}{text}" for name, text in lines))
