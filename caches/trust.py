"""Which bundles may be loaded: those of trusted keys, and those that are pinned.

Loading a bundle runs code, as its caches hold pickles and machine code. Its own digests
say that it is whole, not who made it.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from flytune.caches.archive import BundleError, Fault
from flytune.caches.bundle import Bundle
from flytune.caches.codes import Code
from flytune.caches.keyring import Keyring, read_keyring
from flytune.shapes.errors import FlytuneError


class Standing(StrEnum):
    """What a signer is here; a closed set."""

    TRUSTED = "trusted"
    REVOKED = "revoked"
    UNKNOWN = "unknown"
    """No key with that id is here, so whether it signed cannot be told."""
    FORGED = "forged"
    """The key of that id, which is trusted here, did not sign."""


class Signer(NamedTuple):
    """A key that a bundle names as one of its signers'."""

    keyid: str
    standing: Standing


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom a caller trusts, beside the keys of this user and of $FLYTUNE_TRUST."""

    keys: tuple[Path, ...] = ()
    """Files of public keys, and folders of them."""
    allow_unsigned: bool = False
    """Whether a bundle that no trusted key signed may be loaded, by whoever made it."""


HERE = Trust()
"""Nobody else."""


class UntrustedError(FlytuneError):
    """A bundle that may be whole, and that nobody here vouches for."""

    def __init__(self, bundle: Bundle, signed_by: tuple[Signer, ...]) -> None:
        words = ", ".join(f"{one.keyid} ({one.standing})" for one in signed_by)
        super().__init__(
            "bundle is not signed by a key that is trusted here: "
            f"{bundle.path}: signed by {words or 'nobody'}",
            hint="trust its signer: `flytune trust KEY.pub`, or --trust KEY.pub; or "
            "pin it by a digest that you know: BUNDLE@sha256:DIGEST; or load whatever "
            "it holds: --allow-unsigned",
            code=Code.UNTRUSTED,
        )
        self.signed_by = signed_by


def admit(bundle: Bundle, trust: Trust) -> None:
    """Let a bundle be loaded, or not; to be asked before its files are used.

    A pin vouches for every byte, whoever signed. Else one trusted key suffices,
    whatever signatures there are besides.

    Raises:
        UntrustedError: no trusted key signed it, or a revoked one did and no other.
        BundleError: a trusted key's signature does not verify, or is over another
            manifest.
        FlytuneError: keys that are named cannot be read.
    """
    if bundle.pinned:
        return
    try:
        keyring = read_keyring(trust.keys)
    except FlytuneError as error:
        error.code = Code.KEYS
        raise
    found = signers(bundle, keyring)
    standings = {one.standing for one in found}
    if Standing.TRUSTED in standings:
        return
    if Standing.FORGED in standings:
        raise BundleError(Fault.FORGED, bundle.path)
    if Standing.REVOKED in standings or not trust.allow_unsigned:
        raise UntrustedError(bundle, found)


def signers(bundle: Bundle, keyring: Keyring) -> tuple[Signer, ...]:
    """Return who a bundle says has signed it, and what each is here.

    Raises:
        BundleError: a trusted key's signature is right, and over another manifest.
    """
    envelope = bundle.envelope
    if envelope is None:
        return ()
    found = []
    for keyid in (one.keyid for one in envelope.signatures):
        standing = Standing.UNKNOWN
        if keyid in keyring.revoked:
            standing = Standing.REVOKED
        elif keyid in keyring.trusted:
            key = keyring.trusted[keyid].key
            right = envelope.is_signed_by(keyid, key)
            standing = Standing.TRUSTED if right else Standing.FORGED
        found.append(Signer(keyid, standing))
    if any(one.standing is Standing.TRUSTED for one in found):
        envelope.check_subject(bundle.digest)
    return tuple(found)
