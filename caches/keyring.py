"""The keys of this user: one to sign with, those that are trusted, those revoked.

    $FLYTUNE_KEYS, else $XDG_CONFIG_HOME/flytune/keys, else ~/.config/flytune/keys
        own.pem, own.pub     the user's own key
        trusted/*.pub        public keys whose bundles may be loaded
        revoked              ids of keys whose bundles may not, one a line

More keys are trusted by $FLYTUNE_TRUST and by `--trust`, which name files and folders;
a folder there is of `*.pub`, and may have a list `revoked` of its own.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flytune.caches.bundle import make_private, writing
from flytune.caches.key_files import (
    PUBLIC_SUFFIX,
    PublicKey,
    key_id,
    load_private,
    load_public,
    public_pem,
    publish_private,
    read_file,
    replace_file,
)
from flytune.caches.manifest import is_digest
from flytune.shapes.errors import FlytuneError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

OWN_NAME = "own.pem"
_TRUSTED = "trusted"
_REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Keyring:
    """Whose bundles may be loaded here."""

    trusted: Mapping[str, PublicKey]
    """By id; also those that are revoked."""
    revoked: frozenset[str]
    """Refused, whoever trusts them."""


def keys_folder() -> Path:
    """Return where this user's keys are, as an absolute path.

    Raises:
        FlytuneError: there is no home directory.
    """
    if named := os.environ.get("FLYTUNE_KEYS"):
        return Path(named).absolute()
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        return Path(config).expanduser().absolute() / "flytune" / "keys"
    except RuntimeError as error:
        raise FlytuneError("no home directory", hint="set FLYTUNE_KEYS") from error


def read_keyring(more: Iterable[Path] = ()) -> Keyring:
    """Return the keys of this user's folder, of $FLYTUNE_TRUST and of `more`.

    Args:
        more: files of public keys, and folders of them.

    Raises:
        FlytuneError: one that is named cannot be read, or others can write it.
    """
    variable = os.environ.get("FLYTUNE_TRUST", "").split(os.pathsep)
    named = [*map(Path, filter(None, variable)), *more]
    own = _own_folder()
    try:
        files = [file for path in named for file in _public_files(path)]
        revoked = frozenset[str]().union(*map(_revoked, filter(Path.is_dir, named)))
        if own is not None:
            check_owned(own)
            revoked |= _revoked(own)
            if (own / _TRUSTED).exists():
                files += _public_files(own / _TRUSTED)
    except OSError as error:
        place = error.filename or own
        raise FlytuneError(f"cannot read keys: {place}: {error.strerror}") from error
    keys = map(load_public, files)
    return Keyring({key.keyid: key for key in keys}, revoked)


def own_key() -> "Ed25519PrivateKey":
    """Return the user's own key, made and trusted here if there is none.

    Raises:
        FlytuneError: it cannot be read or made, or others can write the folder.
    """
    path = keys_folder() / OWN_NAME
    if not path.exists():
        try:
            return make_own_key()
        except FlytuneError:
            # Another process was first; else there is a fault.
            if not path.exists():
                raise
    with writing(path):
        check_owned(path.parent)
    return load_private(path)


def make_own_key() -> "Ed25519PrivateKey":
    """Make the user's own key, and trust it here.

    Raises:
        FlytuneError: there is one, or it cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = keys_folder() / OWN_NAME
    key = Ed25519PrivateKey.generate()
    # Trusted first: a key that is there and not trusted would look as if removed.
    trusted = trust(key.public_key(), "own")
    try:
        with writing(path):
            publish_private(path, key)
            public = path.with_suffix(PUBLIC_SUFFIX)
            replace_file(public, public_pem(key.public_key()))
    except FlytuneError:
        trusted.unlink(missing_ok=True)
        raise
    return key


def trust(key: "Ed25519PublicKey", name: str) -> Path:
    """Add a key to those trusted by this user and return its file.

    Args:
        name: what the file is called, before the start of the key's id.

    Raises:
        FlytuneError: it is revoked, or cannot be written.
    """
    folder, keyid = keys_folder(), key_id(key)
    path = folder / _TRUSTED / f"{name}-{keyid[:16]}{PUBLIC_SUFFIX}"
    with writing(path):
        make_private(path.parent)
        check_owned(folder)
        check_owned(path.parent)
        if keyid in _revoked(folder):
            hint = f"take it out of {folder / _REVOKED} first"
            raise FlytuneError(f"key is revoked: {keyid}", hint=hint)
        replace_file(path, public_pem(key))
    return path


def revoke(keyid: str) -> Path:
    """Refuse a key from now on, whoever trusts it; return the list that says so.

    Raises:
        FlytuneError: it is no key's id, or cannot be written.
    """
    if not is_digest(keyid):
        raise FlytuneError(
            f"not the id of a key: `{keyid}`", hint="`flytune trust --list` shows them"
        )
    folder = keys_folder()
    with writing(folder):
        make_private(folder)
        check_owned(folder)
        lines = sorted(_revoked(folder) | {keyid})
        text = "".join(f"{line}\n" for line in lines)
        replace_file(folder / _REVOKED, text.encode())
    return folder / _REVOKED


def check_owned(path: Path) -> None:
    """Refuse what others than this user and root could have written.

    Raises:
        FlytuneError: they can.
        OSError: it is not there.
    """
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise FlytuneError(
            f"keys can be written by other users: {path}",
            hint="make it your own or root's, and chmod go-w; or name single files",
        )


def _own_folder() -> Path | None:
    """Return the user's folder, if there is one."""
    try:
        folder = keys_folder()
    except FlytuneError:
        # A server without a home directory trusts what it is told to.
        return None
    # One in a home that this user may not look into is another's.
    return folder if os.path.exists(folder) else None


def _public_files(path: Path) -> Iterator[Path]:
    check_owned(path)
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.glob(f"*{PUBLIC_SUFFIX}")):
        check_owned(file)
        yield file


def _revoked(folder: Path) -> frozenset[str]:
    """Return the ids in a folder's list; what is no id may have been meant as one."""
    path = folder / _REVOKED
    if not path.exists():
        return frozenset()
    check_owned(path)
    text, _ = read_file(path)
    lines = {line.strip() for line in text.decode(errors="replace").splitlines()}
    ids = frozenset(line for line in lines if line and not line.startswith("#"))
    for line in sorted(ids):
        if not is_digest(line):
            raise FlytuneError(f"not the id of a key: {path}: `{line[:99]}`")
    return ids
