"""Who may be loaded: signed, pinned, or allowed in so many words."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bundles import FILES, archive, installable, listing, manifest, member, stage
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import flytune.caches
from flytune.caches import keyring
from flytune.caches.archive import BundleError, Fault
from flytune.caches.bundle import Bundle
from flytune.caches.key_files import generate, key_id, public_pem
from flytune.caches.keyring import own_key
from flytune.caches.manifest import sha256_hex
from flytune.caches.packing import pack, sign
from flytune.caches.prepare import InstallStatus, prepare
from flytune.caches.signature import Envelope, statement
from flytune.caches.trust import HERE, Trust, UntrustedError, admit
from flytune.caches.verify import verify
from flytune.caches.verify_kernels import verify_kernels
from flytune.shapes.errors import FlytuneError

TEXT = listing(FILES).to_json()
ANYONE = Trust(allow_unsigned=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder of keys, with an own key."""
    monkeypatch.setenv("FLYTUNE_KEYS", str(tmp_path / "user" / "keys"))
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    own_key()
    return tmp_path / "user" / "keys"


@pytest.fixture
def stranger(tmp_path: Path) -> Ed25519PrivateKey:
    """A key that nobody trusts; its public half is stranger.pub."""
    return generate(tmp_path / "stranger.pem")


def packed(folder: Path, *keys: Ed25519PrivateKey) -> Path:
    staged = stage(folder / "staged")
    return pack(staged, manifest(), folder / "b.tar.zst", keys=keys)


def refused(path: Path | str, trust: Trust = HERE) -> UntrustedError:
    with pytest.raises(UntrustedError) as caught:
        admit(Bundle.open(path), trust)
    return caught.value


def test_own_key_is_enough(tmp_path: Path) -> None:
    admit(Bundle.open(packed(tmp_path, own_key())), HERE)


def test_nobody_signed(tmp_path: Path) -> None:
    path = packed(tmp_path)
    error = refused(path)
    assert str(error) == (
        f"bundle is not signed by a key that is trusted here: {path}: signed by nobody"
    )
    for way in ("flytune trust KEY.pub", "@sha256:DIGEST", "--allow-unsigned"):
        assert way in str(error.hint)
    admit(Bundle.open(path), ANYONE)


def test_a_stranger_signed(tmp_path: Path, stranger: Ed25519PrivateKey) -> None:
    path = packed(tmp_path, stranger)
    keyid = key_id(stranger.public_key())
    assert f"signed by {keyid} (unknown)" in str(refused(path))
    admit(Bundle.open(path), Trust((tmp_path / "stranger.pub",)))
    admit(Bundle.open(path), ANYONE)
    keyring.trust(stranger.public_key(), "stranger")
    admit(Bundle.open(path), HERE)


def test_one_of_several_is_enough(tmp_path: Path, stranger: Ed25519PrivateKey) -> None:
    admit(Bundle.open(packed(tmp_path, stranger, own_key())), HERE)


def test_revocation_bites_whoever_trusts(
    tmp_path: Path, stranger: Ed25519PrivateKey
) -> None:
    path = packed(tmp_path, stranger)
    keyring.trust(stranger.public_key(), "stranger")
    keyring.revoke(key_id(stranger.public_key()))
    trust = Trust((tmp_path / "stranger.pub",), allow_unsigned=True)
    assert "(revoked)" in str(refused(path, trust))


def test_rotation_outlives_the_revoked_key(
    tmp_path: Path, stranger: Ed25519PrivateKey
) -> None:
    path = packed(tmp_path, stranger)
    keyring.revoke(key_id(stranger.public_key()))
    sign(Bundle.open(path), own_key())
    admit(Bundle.open(path), HERE)


def forged(folder: Path, payload: bytes, signer: Ed25519PrivateKey) -> Path:
    """A bundle whose signature names the user's own key."""
    keyid = key_id(own_key().public_key())
    text = Envelope(payload, ()).signed(keyid, signer).to_json()
    heads = [member("manifest.json", TEXT), member("signature.json", text)]
    return archive(
        folder, b"".join([*heads, *(member(n, c) for n, c in FILES.items())])
    )


@pytest.mark.parametrize("trust", [HERE, ANYONE])
def test_a_signature_that_does_not_verify(tmp_path: Path, trust: Trust) -> None:
    payload = statement(sha256_hex(TEXT), {})
    path = forged(tmp_path, payload, Ed25519PrivateKey.generate())
    with pytest.raises(BundleError) as caught:
        admit(Bundle.open(path), trust)
    assert caught.value.fault is Fault.FORGED


@pytest.mark.parametrize("trust", [HERE, ANYONE])
def test_a_right_signature_over_another_manifest(tmp_path: Path, trust: Trust) -> None:
    path = forged(tmp_path, statement("0" * 64, {}), own_key())
    with pytest.raises(BundleError) as caught:
        admit(Bundle.open(path), trust)
    assert caught.value.fault is Fault.FOREIGN


def test_an_unverified_payload_is_never_parsed(tmp_path: Path) -> None:
    path = forged(tmp_path, b"[" * 100_000, Ed25519PrivateKey.generate())
    with pytest.raises(BundleError) as caught:
        admit(Bundle.open(path), HERE)
    assert caught.value.fault is Fault.FORGED


@pytest.mark.parametrize("name", ["b.tar.zst", "b"])
def test_pinned(tmp_path: Path, name: str) -> None:
    path = pack(stage(tmp_path / "staged"), manifest(), tmp_path / name)
    digest = Bundle.open(path).digest
    bundle = Bundle.open(f"{path}@sha256:{digest}")
    assert (bundle.path, bundle.digest) == (path, digest)
    admit(bundle, HERE)
    with pytest.raises(BundleError) as caught:
        Bundle.open(f"{path}@sha256:{'0' * 64}")
    assert caught.value.fault is Fault.PIN
    for pin in ("", "0", "A" * 64, "0" * 65):
        with pytest.raises(FlytuneError, match="pin is not the 64 digits"):
            Bundle.open(f"{path}@sha256:{pin}")


@pytest.fixture
def before_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have imported Inductor, which comes too late."""
    monkeypatch.delitem(sys.modules, "torch._inductor", raising=False)


@pytest.mark.usefixtures("before_torch")
def test_install_asks_before_anything_is_placed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pack(stage(tmp_path / "staged"), manifest(), tmp_path / "b.tar.zst")
    for load in (prepare, partial(flytune.caches.install, strict=True)):
        with pytest.raises(UntrustedError):
            load(path)
    # A server goes on without it.
    installed = flytune.caches.install(path)
    assert (installed.status, installed.code) == ("error", "FT610")
    assert capsys.readouterr().err.endswith(": signed by nobody (FT610)\n")
    assert not (tmp_path / "home" / "installed").exists()


@pytest.mark.usefixtures("before_torch")
def test_keys_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTUNE_TRUST", str(tmp_path / "none.pub"))
    assert flytune.caches.install(installable(tmp_path)).code == "FT611"


def test_install_by_each_way(tmp_path: Path, stranger: Ed25519PrivateKey) -> None:
    path = installable(tmp_path, "b")
    (path / "signature.json").unlink()
    sign(Bundle.open(path), stranger)
    trusting: list[dict[str, Any]] = [
        {"trust": Trust((tmp_path / "stranger.pub",))},
        {"trust": ANYONE},
    ]
    for options in trusting:
        assert prepare(path, **options).status is InstallStatus.HIT
    pinned = f"{path}@sha256:{Bundle.open(path).digest}"
    assert prepare(pinned).status is InstallStatus.HIT
    with pytest.raises(UntrustedError):
        prepare(path)


def test_revocation_bites_what_is_installed_already(tmp_path: Path) -> None:
    path = installable(tmp_path)
    assert prepare(path).directory is not None
    keyring.revoke(key_id(own_key().public_key()))
    with pytest.raises(UntrustedError, match="revoked"):
        prepare(path)


@pytest.mark.parametrize("proof", [verify, verify_kernels])
def test_what_would_run_it_asks_first(tmp_path: Path, proof: Any) -> None:
    path = pack(stage(tmp_path / "staged"), manifest(), tmp_path / "b.tar.zst")
    with pytest.raises(UntrustedError):
        proof(Bundle.open(path))


def test_keys_of_the_environment(
    tmp_path: Path, stranger: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path, stranger)
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "k.pub").write_bytes(public_pem(stranger.public_key()))
    monkeypatch.setenv("FLYTUNE_TRUST", str(tmp_path / "fleet"))
    admit(Bundle.open(path), HERE)
