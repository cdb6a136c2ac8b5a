"""Who signed a bundle: a DSSE envelope around an in-toto statement.

The envelope is that of https://github.com/secure-systems-lab/dsse, version 1.0.2; its
payload is a Statement v1 of https://github.com/in-toto/attestation, whose subject is
the manifest. A signature is over the payload's bytes, which are looked into only after
one of them has been verified.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from flytune.caches.archive import BundleError, Fault
from flytune.caches.manifest import (
    MANIFEST_NAME,
    canonical_json,
    is_digest,
    parse_object,
)
from flytune.shapes.errors import FlytuneError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SIGNATURE_LIMIT_BYTES = 2**20
SIGNERS_LIMIT = 16
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "urn:flytune:provenance:1"
_SIGNATURE_BYTES = 64
# DSSE lets a writer choose either alphabet.
_URL_SAFE = str.maketrans("-_", "+/")


@dataclass(frozen=True, slots=True)
class Signature:
    """One signer's; that the key is the one named is not known before it verifies."""

    keyid: str
    """As `keyring.key_id` gives it."""
    sig: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """The content of `signature.json`, of which nothing was verified yet."""

    payload: bytes
    signatures: tuple[Signature, ...]

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Return the envelope of a text whose payload is left unread.

        Raises:
            BundleError: it is malformed, of another type, not in base64, or has too
                many signatures.
        """
        try:
            row = parse_object(text, "envelope")
        except FlytuneError as error:
            raise BundleError(Fault.ENVELOPE, error) from error
        if row.keys() != {"payload", "payloadType", "signatures"}:
            raise BundleError(Fault.ENVELOPE, "other fields than DSSE's")
        if row["payloadType"] != PAYLOAD_TYPE:
            raise BundleError(Fault.PAYLOAD_TYPE, repr(row["payloadType"])[:99])
        rows = row["signatures"]
        if not isinstance(rows, list) or not rows:
            raise BundleError(Fault.ENVELOPE, "no signature in it")
        if len(rows) > SIGNERS_LIMIT:
            raise BundleError(Fault.SIGNERS, f"{len(rows)}, of {SIGNERS_LIMIT} at most")
        signatures = tuple(map(_signature, rows))
        if len({one.keyid for one in signatures}) != len(signatures):
            raise BundleError(Fault.ENVELOPE, "a key signed it twice")
        return cls(_decoded(row["payload"]), signatures)

    def to_json(self) -> bytes:
        """Return canonical JSON."""
        rows = [
            {"keyid": one.keyid, "sig": base64.b64encode(one.sig).decode()}
            for one in self.signatures
        ]
        payload = base64.b64encode(self.payload).decode()
        return canonical_json(
            {"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": rows}
        )

    def is_signed_by(self, keyid: str, key: "Ed25519PublicKey") -> bool:
        """Return whether the key's own signature is there and right."""
        from cryptography.exceptions import InvalidSignature

        for one in self.signatures:
            if one.keyid == keyid:
                try:
                    key.verify(one.sig, _encoded(self.payload))
                except InvalidSignature:
                    return False
                return True
        return False

    def signed(self, keyid: str, key: "Ed25519PrivateKey") -> Self:
        """Return it with a signature more, in place of an earlier one of the key.

        Raises:
            BundleError: it has as many as there may be.
        """
        others = [one for one in self.signatures if one.keyid != keyid]
        if len(others) == SIGNERS_LIMIT:
            raise BundleError(Fault.SIGNERS, f"{SIGNERS_LIMIT} are there already")
        own = Signature(keyid, key.sign(_encoded(self.payload)))
        return type(self)(self.payload, (*others, own))

    def check_subject(self, digest: str) -> None:
        """Check that the payload is about one manifest; only after it was verified.

        Args:
            digest: the SHA-256 of the manifest's bytes, in hexadecimal digits.

        Raises:
            BundleError: it is about another one, or no statement.
        """
        try:
            row = parse_object(self.payload, "statement")
        except FlytuneError as error:
            raise BundleError(Fault.ENVELOPE, error) from error
        if row.get("_type") != _STATEMENT_TYPE:
            raise BundleError(Fault.ENVELOPE, "payload is no in-toto statement")
        if row.get("subject") != _subject(digest):
            raise BundleError(Fault.FOREIGN, json.dumps(row.get("subject"))[:199])


def statement(digest: str, provenance: Mapping[str, Any]) -> bytes:
    """Return the payload that is signed for a manifest.

    Args:
        digest: the SHA-256 of the manifest's bytes, in hexadecimal digits.
        provenance: the manifest's own, so that others' tools find it too.

    Raises:
        FlytuneError: the provenance is no JSON.
    """
    return canonical_json(
        {
            "_type": _STATEMENT_TYPE,
            "subject": _subject(digest),
            "predicateType": _PREDICATE_TYPE,
            "predicate": provenance,
        }
    )


def _subject(digest: str) -> list[dict[str, Any]]:
    return [{"name": MANIFEST_NAME, "digest": {"sha256": digest}}]


def _encoded(payload: bytes) -> bytes:
    """Return what is signed: DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _signature(row: object) -> Signature:
    if not isinstance(row, dict) or row.keys() != {"keyid", "sig"}:
        raise BundleError(Fault.ENVELOPE, "a signature has other fields than DSSE's")
    if not is_digest(row["keyid"]):
        raise BundleError(Fault.ENVELOPE, "a key's id is not a SHA-256")
    sig = _decoded(row["sig"])
    if len(sig) != _SIGNATURE_BYTES:
        raise BundleError(Fault.ENVELOPE, f"a signature of {len(sig)} bytes")
    return Signature(row["keyid"], sig)


def _decoded(text: object) -> bytes:
    if not isinstance(text, str):
        raise BundleError(Fault.BASE64, "a number or an object instead")
    try:
        return base64.b64decode(text.translate(_URL_SAFE), validate=True)
    except ValueError as error:
        raise BundleError(Fault.BASE64, error) from error
