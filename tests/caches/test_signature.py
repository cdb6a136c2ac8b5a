"""The envelope's rules, one broken at a time, and what signing writes."""

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundles import FILES, archive, listing, manifest, member, signed, stage, tree
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flytune.caches.archive import BundleError, Fault
from flytune.caches.bundle import Bundle
from flytune.caches.key_files import generate, key_id, load_private
from flytune.caches.keyring import own_key
from flytune.caches.manifest import sha256_hex
from flytune.caches.packing import pack, sign
from flytune.caches.signature import Envelope, statement
from flytune.shapes.errors import FlytuneError

NAMES = ("b.tar.zst", "b")
PROVENANCE = {"command": ["flytune", "build"], "commit": None, "host": "builder"}
TEXT = listing(FILES).to_json()


def envelope(*keys: Ed25519PrivateKey) -> Envelope:
    made = Envelope(statement(sha256_hex(TEXT), PROVENANCE), ())
    for key in keys:
        made = made.signed(key_id(key.public_key()), key)
    return made


def row(**changes: Any) -> dict[str, Any]:
    return json.loads(envelope(own_key()).to_json()) | changes


def other_signature(**changes: Any) -> list[dict[str, Any]]:
    return [row()["signatures"][0] | changes]


def with_envelope(folder: Path, text: bytes) -> Path:
    """An archive of the usual files with this signature."""
    files = ((name, content) for name, content in FILES.items())
    parts = [member("manifest.json", TEXT), member("signature.json", text)]
    return archive(folder, b"".join([*parts, *(member(n, c) for n, c in files)]))


def test_round_trip() -> None:
    keys = [own_key(), Ed25519PrivateKey.generate()]
    made = envelope(*keys)
    read = Envelope.from_json(made.to_json())
    assert read == made
    for key in keys:
        public = key.public_key()
        assert read.is_signed_by(key_id(public), public)
    assert not read.is_signed_by(key_id(keys[0].public_key()), keys[1].public_key())
    assert not read.is_signed_by("0" * 64, keys[0].public_key())
    read.check_subject(sha256_hex(TEXT))


def test_the_payload_is_a_statement_about_the_manifest() -> None:
    assert json.loads(envelope(own_key()).payload) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "manifest.json", "digest": {"sha256": sha256_hex(TEXT)}}],
        "predicateType": "urn:flytune:provenance:1",
        "predicate": PROVENANCE,
    }


def test_openssl_verifies_it_too(tmp_path: Path) -> None:
    generate(tmp_path / "k.pem")
    staged = stage(tmp_path / "staged")
    key = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", tmp_path / "k.pub", "-outform", "DER"],
        capture_output=True,
        check=True,
    ).stdout
    private = load_private(tmp_path / "k.pem")
    out = pack(staged, manifest(), tmp_path / "b", keys=[private])
    stored = json.loads((out / "signature.json").read_bytes())
    payload = base64.b64decode(stored["payload"])
    kind = stored["payloadType"].encode()
    encoded = f"DSSEv1 {len(kind)} ".encode() + kind + f" {len(payload)} ".encode()
    (tmp_path / "signed").write_bytes(encoded + payload)
    (signature,) = stored["signatures"]
    assert signature["keyid"] == sha256_hex(key)
    (tmp_path / "sig").write_bytes(base64.b64decode(signature["sig"]))
    verify = ("openssl", "pkeyutl", "-verify", "-pubin", "-inkey", tmp_path / "k.pub")
    done = subprocess.run(
        [*verify, "-rawin", "-in", tmp_path / "signed", "-sigfile", tmp_path / "sig"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Signature Verified Successfully" in done.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (lambda: b"", Fault.ENVELOPE),
        (lambda: b"[]", Fault.ENVELOPE),
        (lambda: b"[" * 100_000, Fault.ENVELOPE),
        (lambda: row(more=1), Fault.ENVELOPE),
        (lambda: row(signatures=[]), Fault.ENVELOPE),
        (lambda: row(signatures={}), Fault.ENVELOPE),
        (lambda: row(signatures=[1]), Fault.ENVELOPE),
        (lambda: row(signatures=other_signature(more=1)), Fault.ENVELOPE),
        (lambda: row(signatures=other_signature(keyid="ab")), Fault.ENVELOPE),
        (lambda: row(signatures=other_signature(sig="AAAA")), Fault.ENVELOPE),
        (lambda: row(signatures=2 * row()["signatures"]), Fault.ENVELOPE),
        (lambda: row(signatures=17 * row()["signatures"]), Fault.SIGNERS),
        (lambda: row(payloadType="text/plain"), Fault.PAYLOAD_TYPE),
        (lambda: row(payloadType=None), Fault.PAYLOAD_TYPE),
        (lambda: row(payload="@@@@"), Fault.BASE64),
        (lambda: row(payload="AAA"), Fault.BASE64),
        (lambda: row(payload="\N{SNOWMAN}"), Fault.BASE64),
        (lambda: row(payload=7), Fault.BASE64),
        (lambda: row(signatures=other_signature(sig="=")), Fault.BASE64),
        (lambda: row(signatures=other_signature(sig=None)), Fault.BASE64),
    ],
)
def test_malformed_envelope(
    tmp_path: Path, text: Callable[[], Any], expected: Fault
) -> None:
    made = text()
    content = made if isinstance(made, bytes) else json.dumps(made).encode()
    with pytest.raises(BundleError) as caught:
        Bundle.open(with_envelope(tmp_path, content))
    assert caught.value.fault is expected


def test_both_alphabets_of_base64() -> None:
    # Bytes that are "+" and "/" in one and "-" and "_" in the other.
    payload = b"\xfb\xef\xbe\xff\xff\xff"
    for text in ("++++////", "----____", "+-+-/_/_"):
        made = Envelope.from_json(json.dumps(row(payload=text)).encode())
        assert made.payload == payload


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (statement("0" * 64, PROVENANCE), Fault.FOREIGN),
        (b"{}", Fault.ENVELOPE),
        (b"no JSON", Fault.ENVELOPE),
        (
            statement(sha256_hex(TEXT), {}).replace(b"/v1", b"/v2"),
            Fault.ENVELOPE,
        ),
    ],
)
def test_payload_about_something_else(payload: bytes, expected: Fault) -> None:
    with pytest.raises(BundleError) as caught:
        Envelope(payload, ()).check_subject(sha256_hex(TEXT))
    assert caught.value.fault is expected


def test_seventeenth_signer() -> None:
    made = envelope(*(Ed25519PrivateKey.generate() for _ in range(16)))
    with pytest.raises(BundleError) as caught:
        made.signed("0" * 64, own_key())
    assert caught.value.fault is Fault.SIGNERS


def test_huge_signature_is_not_read(tmp_path: Path) -> None:
    path = with_envelope(tmp_path, bytes(2**20 + 1))
    with pytest.raises(BundleError) as caught:
        Bundle.open(path)
    assert caught.value.fault is Fault.SIGNATURE_SIZE


def test_signature_elsewhere_than_second(tmp_path: Path) -> None:
    text = envelope(own_key()).to_json()
    late = member("signature.json", text)
    whole = b"".join(member(n, c) for n, c in FILES.items())
    for content in (
        member("manifest.json", TEXT) + whole + late,
        member("manifest.json", TEXT) + late + whole + late,
    ):
        bundle = Bundle.open(archive(tmp_path, content))
        with pytest.raises(BundleError) as caught:
            bundle.place(tmp_path / "placed")
        assert caught.value.fault is Fault.SECOND


def test_folder_whose_signature_is_a_link(tmp_path: Path) -> None:
    path = signed(stage(tmp_path / "staged"), manifest(), tmp_path / "b")
    (path / "signature.json").rename(tmp_path / "s")
    (path / "signature.json").symlink_to(tmp_path / "s")
    with pytest.raises(FlytuneError, match="cannot read bundle"):
        Bundle.open(path)


@pytest.mark.parametrize("name", NAMES)
def test_packed_with_a_signature(tmp_path: Path, name: str) -> None:
    bundle = Bundle.open(
        signed(stage(tmp_path / "staged"), manifest(), tmp_path / name)
    )
    assert bundle.envelope is not None
    bundle.envelope.check_subject(bundle.digest)
    heads = bundle.heads()
    assert list(heads) == ["manifest.json", "signature.json"]
    assert sha256_hex(heads["manifest.json"]) == bundle.digest
    assert Envelope.from_json(heads["signature.json"]) == bundle.envelope
    bundle.check()
    bundle.place(tmp_path / "placed")
    assert tree(tmp_path / "placed") == FILES


@pytest.mark.parametrize("name", NAMES)
def test_signing_adds_and_replaces(tmp_path: Path, name: str) -> None:
    path = pack(stage(tmp_path / "staged"), manifest(), tmp_path / name)
    path.chmod(0o700)
    digest, keys = Bundle.open(path).digest, []
    for key in (own_key(), Ed25519PrivateKey.generate(), own_key()):
        sign(Bundle.open(path), key)
        keys.append(key_id(key.public_key()))
        bundle = Bundle.open(path)
        assert bundle.digest == digest
        assert bundle.envelope is not None
        named = {one.keyid for one in bundle.envelope.signatures}
        assert named == set(keys)
        bundle.check()
    assert path.stat().st_mode & 0o777 == 0o700
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, "staged"])


def test_signed_again_is_the_same_bytes(tmp_path: Path) -> None:
    path = signed(stage(tmp_path / "staged"), manifest(), tmp_path / "b.tar.zst")
    before = path.read_bytes()
    sign(Bundle.open(path), own_key())
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_whole_is_not_signed(tmp_path: Path, name: str) -> None:
    path = pack(stage(tmp_path / "staged"), manifest(), tmp_path / name)
    if path.is_dir():
        (path / "keys.json").write_bytes(b"{}\n")
    else:
        path.write_bytes(path.read_bytes()[:-9])
    before = path.read_bytes() if path.is_file() else tree(path)
    with pytest.raises(BundleError):
        sign(Bundle.open(path), own_key())
    assert (path.read_bytes() if path.is_file() else tree(path)) == before


def test_another_statement_is_not_signed(tmp_path: Path) -> None:
    # It is about the manifest, and says of it what its maker did not.
    made = Envelope(statement(sha256_hex(TEXT), {"commit": "forged"}), ())
    text = made.signed("0" * 64, Ed25519PrivateKey.generate()).to_json()
    path = with_envelope(tmp_path, text)
    with pytest.raises(BundleError) as caught:
        sign(Bundle.open(path), own_key())
    assert caught.value.fault is Fault.FOREIGN


def test_killed_while_signing_leaves_the_old(tmp_path: Path) -> None:
    path = signed(stage(tmp_path / "staged"), manifest(), tmp_path / "b.tar.zst")
    before = path.read_bytes()
    code = """
import os, signal, sys
from flytune.caches import packing
from flytune.caches.bundle import Bundle
from flytune.caches.keyring import own_key
packing._pack_archive = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
packing.sign(Bundle.open(sys.argv[1]), own_key())
"""
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
