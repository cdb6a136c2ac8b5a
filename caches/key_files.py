"""Files of Ed25519 keys, as OpenSSL reads and writes them.

A private key is PKCS 8 in PEM, a public one SubjectPublicKeyInfo in PEM. A key's id is
the SHA-256 of the latter in DER.
"""

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flytune.caches.bundle import make_private, writing
from flytune.shapes.errors import FlytuneError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

PUBLIC_SUFFIX = ".pub"
_LIMIT_BYTES = 2**20
_PUBLIC, _PRIVATE = b"-----BEGIN PUBLIC KEY-----", b"PRIVATE KEY-----"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key and where it was read."""

    keyid: str
    key: "Ed25519PublicKey"
    path: Path


def key_id(key: "Ed25519PublicKey") -> str:
    """Return a key's id: `openssl pkey -pubin -in F -outform DER | sha256sum`."""
    from cryptography.hazmat.primitives import serialization

    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def generate(path: Path) -> "Ed25519PrivateKey":
    """Make a key: the private one at `path`, the public one beside it.

    Raises:
        FlytuneError: one of both exists, or cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = path.with_suffix(PUBLIC_SUFFIX)
    if path == public or public.exists():
        raise FlytuneError(f"key exists: {public}", hint="give it another name")
    key = Ed25519PrivateKey.generate()
    with writing(path):
        make_private(path.absolute().parent)
        publish_private(path, key)
        replace_file(public, public_pem(key.public_key()))
    return key


def publish_private(path: Path, key: "Ed25519PrivateKey") -> None:
    """Write a private key to a file that must not be there yet.

    Raises:
        FlytuneError: it is; of several processes one succeeds.
        OSError: it cannot be written.
    """
    from cryptography.hazmat.primitives import serialization

    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    temporary = _temporary(path, pem, 0o600)
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        hint = "sign with it, or give another name"
        raise FlytuneError(f"key exists: {path}", hint=hint) from error
    finally:
        temporary.unlink()


def load_private(path: Path) -> "Ed25519PrivateKey":
    """Read a private key.

    Raises:
        FlytuneError: it cannot be read, is no Ed25519 key, or others can read it.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    text, status = read_file(path)
    if _PUBLIC in text:
        hint = f"name the private key, such as {path.with_suffix('.pem')}"
        raise FlytuneError(f"a public key cannot sign: {path}", hint=hint)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
        raise FlytuneError(
            f"private key can be read by others: {path}",
            hint=f"chmod 600 {path}; if others may have read it, make another",
        )
    try:
        key = serialization.load_pem_private_key(text, None)
    # One with a passphrase is a TypeError.
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FlytuneError(f"no private key without a passphrase: {path}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise FlytuneError(f"no Ed25519 key: {path}")
    return key


def load_public(path: Path) -> PublicKey:
    """Read a public key.

    Raises:
        FlytuneError: it cannot be read or is no Ed25519 key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    text, _ = read_file(path)
    if _PRIVATE in text:
        hint = f"trust the public one, such as {path.with_suffix(PUBLIC_SUFFIX)}"
        raise FlytuneError(f"a private key, and no public one: {path}", hint=hint)
    try:
        key = serialization.load_pem_public_key(text)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FlytuneError(f"no public key: {path}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise FlytuneError(f"no Ed25519 key: {path}")
    return PublicKey(key_id(key), key, path)


def public_pem(key: "Ed25519PublicKey") -> bytes:
    """Return a public key as its file holds it."""
    from cryptography.hazmat.primitives import serialization

    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def read_file(path: Path) -> tuple[bytes, os.stat_result]:
    """Read a small file of keys.

    Raises:
        FlytuneError: it cannot be read, or is no plain file.
    """
    try:
        # Not to hang on a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LIMIT_BYTES:
                raise FlytuneError(f"no file of keys: {path}")
            return file.read(_LIMIT_BYTES), status
    except OSError as error:
        raise FlytuneError(f"cannot read keys: {path}: {error.strerror}") from error


def replace_file(path: Path, content: bytes) -> None:
    """Write a whole file that all may read, in place of an earlier one."""
    _temporary(path, content, 0o644).replace(path)


def _temporary(path: Path, content: bytes, mode: int) -> Path:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
    return Path(name)
