"""`flytune push`, `pull` and `mirror`: bundles to and from where they are kept."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from flytune.caches.choice import NoBundleError, Wanted
from flytune.caches.hub import pull_from_hub, push_to_hub
from flytune.caches.layout import LayoutStore
from flytune.caches.shipping import Shipped, mirror, pull, push, store_of
from flytune.caches.store import HUB_SCHEME, Reference

_REFERENCE = click.argument("reference")
_INSECURE = click.option(
    "--insecure", is_flag=True, help="Speak plain HTTP with the registry."
)
_CA = click.option(
    "--ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Certificates of your own CA, PEM [default: $FLYTUNE_CA, else the system's]",
)
_JSON = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout"
)


def _registry(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a connection."""
    return _INSECURE(_CA(_JSON(command)))


@click.command("push")
@click.argument("bundle", type=click.Path(readable=False, path_type=Path))
@_REFERENCE
@_registry
def push_command(
    bundle: Path, reference: str, insecure: bool, ca: Path | None, as_json: bool
) -> None:
    """Send BUNDLE to REFERENCE and print what names it for good.

    REFERENCE is REGISTRY/REPOSITORY[:TAG], oci:DIR[:TAG] for a folder, or
    hf://ORG/REPO[@REVISION]. A tag is an index of the bundles of one model: one for the
    same target, ranks and engine is replaced, all others stay.
    """
    if reference.startswith(HUB_SCHEME):
        _print(push_to_hub(bundle, reference, ca), as_json)
        return
    parsed = Reference.parse(reference)
    store = store_of(parsed, insecure=insecure, ca=ca)
    _print(push(bundle, parsed, store), as_json)


@click.command("pull")
@_REFERENCE
@click.option(
    "--out",
    type=click.Path(readable=False, path_type=Path),
    help="A directory, or a .tar.zst [default: MODEL.TARGET.tar.zst here]",
)
@click.option("--for-host", is_flag=True, help="The bundle that is for this host.")
@click.option("--target", help="The bundle for this target, as its file is named.")
@click.option("--tp", type=click.IntRange(1), help="The one for so many ranks.")
@click.option(
    "--ep", type=click.IntRange(1), help="The one for so many expert-parallel ranks."
)
@click.option("--engine", help="The one for this engine.")
@click.option(
    "--allow-absent",
    is_flag=True,
    help="Write nothing and end well where there is no such bundle, as before the "
    "first push; what cannot be reached, or is damaged, stays an error.",
)
@_registry
def pull_command(
    reference: str,
    out: Path | None,
    for_host: bool,
    target: str | None,
    tp: int | None,
    ep: int | None,
    engine: str | None,
    allow_absent: bool,
    insecure: bool,
    ca: Path | None,
    as_json: bool,
) -> None:
    """Fetch the bundle of REFERENCE that is wanted, check all of it, and keep it.

    REFERENCE is as for push, and may end in @sha256:DIGEST. Where it names several
    bundles, one must be chosen. Nothing is overwritten.
    """
    wanted = Wanted(target, tp, ep, engine, for_host)
    try:
        if reference.startswith(HUB_SCHEME):
            shipped = pull_from_hub(reference, wanted, out, ca)
        else:
            parsed = Reference.parse(reference)
            store = store_of(parsed, insecure=insecure, ca=ca)
            shipped = pull(parsed, store, wanted, out)
    except NoBundleError as error:
        if not allow_absent:
            raise
        click.echo(f"absent: {error}", err=True)
        if as_json:
            click.echo(json.dumps({"bundle": None, "index": None, "out": None}))
        return
    _print(shipped, as_json)


@click.command("mirror")
@_REFERENCE
@click.argument(
    "folder", type=click.Path(readable=False, path_type=Path, file_okay=False)
)
@_registry
def mirror_command(
    reference: str, folder: Path, insecure: bool, ca: Path | None, as_json: bool
) -> None:
    """Copy all that REFERENCE names into FOLDER, for hosts without a network.

    FOLDER is an OCI image layout: there `flytune pull oci:FOLDER:TAG` reads it.
    """
    source = Reference.parse(reference)
    target = Reference(str(folder), "", source.tag, None)
    store = store_of(source, insecure=insecure, ca=ca)
    digest, moved = mirror(source, store, LayoutStore(target))
    row = {"layout": str(target), "index": source.pinned(digest)}
    if as_json:
        click.echo(json.dumps({**row, **moved.row()}))
    else:
        _echo({**row, "moved": str(moved)})


def _print(shipped: Shipped, as_json: bool) -> None:
    out = None if shipped.out is None else str(shipped.out)
    row = {"bundle": shipped.bundle, "index": shipped.index, "out": out}
    if as_json:
        moved = {} if shipped.moved is None else shipped.moved.row()
        click.echo(json.dumps({**row, **moved}))
    else:
        moved_text = None if shipped.moved is None else str(shipped.moved)
        lines = {**row, "moved": moved_text}
        _echo({name: text for name, text in lines.items() if text is not None})


def _echo(lines: Mapping[str, str]) -> None:
    click.echo("\n".join(f"{name:<8}{text}" for name, text in lines.items()))
