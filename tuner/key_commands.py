"""The commands for keys: make one, sign with it, and say whose bundles are loaded."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from flytune.caches.keyring import Keyring


@click.command("keygen")
@click.option(
    "--out",
    type=click.Path(readable=False, path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The private key's file; the public one is beside it, named .pub.  "
    "[default: the user's own key, trusted on this machine]",
)
def keygen_command(out: Path | None) -> None:
    """Make an Ed25519 key to sign bundles with; a file that exists is refused."""
    from flytune.caches.key_files import PUBLIC_SUFFIX, generate, key_id
    from flytune.caches.keyring import OWN_NAME, keys_folder, make_own_key

    key = make_own_key() if out is None else generate(out)
    path = keys_folder() / OWN_NAME if out is None else out
    click.echo(f"key      {key_id(key.public_key())}")
    click.echo(f"private  {path}")
    click.echo(f"public   {path.with_suffix(PUBLIC_SUFFIX)}")


@click.command("sign")
@click.argument("bundle", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--key",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="The private key.  [default: the user's own, made if there is none]",
)
def sign_command(bundle: Path, key: Path | None) -> None:
    """Check every file of BUNDLE and add a signature to those that it has."""
    from flytune.caches.bundle import Bundle
    from flytune.caches.key_files import key_id, load_private
    from flytune.caches.keyring import own_key
    from flytune.caches.packing import sign

    opened = Bundle.open(bundle)
    private = own_key() if key is None else load_private(key)
    sign(opened, private)
    click.echo(f"signed   {opened.path}@sha256:{opened.digest}")
    click.echo(f"key      {key_id(private.public_key())}")


@click.command("trust")
@click.argument(
    "keys",
    nargs=-1,
    type=click.Path(readable=False, path_type=Path),
    metavar="[KEY.pub]...",
)
@click.option("--revoke", multiple=True, metavar="ID", help="Refuse a key from now on.")
@click.option("--list", "listed", is_flag=True, help="List the keys, as of the end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a key: --list")
def trust_command(
    keys: tuple[Path, ...], revoke: tuple[str, ...], listed: bool, as_json: bool
) -> None:
    """Load the bundles of these public KEYs from now on, on this machine."""
    from flytune.caches import keyring
    from flytune.caches.key_files import load_public

    if not (keys or revoke or listed or as_json):
        raise click.UsageError("name a key's file, --revoke or --list")
    # All are read before one is trusted.
    for one in [load_public(path) for path in keys]:
        path = keyring.trust(one.key, one.path.stem)
        click.echo(f"trusted  {one.keyid}  {path}", err=as_json)
    for keyid in revoke:
        path = keyring.revoke(keyid)
        click.echo(f"revoked  {keyid}  {path}", err=as_json)
    if listed or as_json:
        _list(keyring.read_keyring(), as_json)


def _list(found: "Keyring", as_json: bool) -> None:
    paths = {keyid: str(one.path) for keyid, one in found.trusted.items()}
    for keyid in sorted({*paths, *found.revoked}):
        standing = "revoked" if keyid in found.revoked else "trusted"
        path = paths.get(keyid)
        if as_json:
            click.echo(json.dumps({"keyid": keyid, "standing": standing, "path": path}))
        else:
            click.echo(f"{standing}  {keyid}" + (f"  {path}" if path else ""))
