"""Key files and the folder of keys, in folders of the tests' own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flytune.caches import keyring
from flytune.caches.key_files import (
    generate,
    key_id,
    load_private,
    load_public,
    public_pem,
)
from flytune.shapes.errors import FlytuneError

PKCS8 = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder of keys, which is not there yet."""
    monkeypatch.setenv("FLYTUNE_KEYS", str(tmp_path / "home" / "keys"))
    return tmp_path / "home" / "keys"


def test_where_keys_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTUNE_KEYS", "/a/keys")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert keyring.keys_folder() == Path("/a/keys")
    monkeypatch.delenv("FLYTUNE_KEYS")
    assert keyring.keys_folder() == Path("/b/flytune/keys")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert keyring.keys_folder() == Path("/c/.config/flytune/keys")


def test_generated_files(tmp_path: Path) -> None:
    key = generate(tmp_path / "new" / "k.pem")
    private, public = tmp_path / "new" / "k.pem", tmp_path / "new" / "k.pub"
    assert private.stat().st_mode & 0o777 == 0o600
    assert private.parent.stat().st_mode & 0o777 == 0o700
    assert private.read_text().startswith("-----BEGIN PRIVATE KEY-----\n")
    assert public.read_text().startswith("-----BEGIN PUBLIC KEY-----\n")
    assert load_public(public).keyid == key_id(load_private(private).public_key())
    assert load_public(public).keyid == key_id(key.public_key())
    assert sorted(p.name for p in private.parent.iterdir()) == ["k.pem", "k.pub"]


@pytest.mark.parametrize("name", ["k.pem", "k.pub"])
def test_no_key_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(FlytuneError, match=f"key exists: .*/{name}"):
        generate(tmp_path / "k.pem")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["mine"]


def test_openssl_reads_them(tmp_path: Path) -> None:
    generate(tmp_path / "k.pem")
    command = ["openssl", "pkey", "-in", tmp_path / "k.pem", "-pubout"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == (tmp_path / "k.pub").read_bytes()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_private_key_that_others_can_read(tmp_path: Path, mode: int) -> None:
    generate(tmp_path / "k.pem")
    (tmp_path / "k.pem").chmod(mode)
    with pytest.raises(FlytuneError, match="private key can be read by others"):
        load_private(tmp_path / "k.pem")


def private_pem(key: Ed25519PrivateKey, password: bytes) -> bytes:
    return key.private_bytes(*PKCS8, serialization.BestAvailableEncryption(password))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: b"", "no private key"),
        (lambda: b"x" * 2**21, "no file of keys"),
        (lambda: private_pem(Ed25519PrivateKey.generate(), b"x"), "a passphrase"),
        (
            lambda: public_pem(Ed25519PrivateKey.generate().public_key()),
            "a public key cannot sign",
        ),
        (
            lambda: generate_private_key(SECP256R1()).private_bytes(
                *PKCS8, serialization.NoEncryption()
            ),
            "no Ed25519 key",
        ),
    ],
)
def test_file_that_is_no_private_key(
    tmp_path: Path, content: Callable[[], bytes], message: str
) -> None:
    path = tmp_path / "k.pem"
    path.write_bytes(content())
    path.chmod(0o600)
    with pytest.raises(FlytuneError, match=message):
        load_private(path)


def test_file_that_is_no_public_key(tmp_path: Path) -> None:
    generate(tmp_path / "k.pem")
    for content in (b"", b"\xff"):
        (tmp_path / "other.pub").write_bytes(content)
        with pytest.raises(FlytuneError, match="no public key"):
            load_public(tmp_path / "other.pub")
    with pytest.raises(FlytuneError, match="a private key, and no public") as caught:
        load_public(tmp_path / "k.pem")
    assert caught.value.hint == f"trust the public one, such as {tmp_path / 'k.pub'}"
    with pytest.raises(FlytuneError, match=r"cannot read keys: .*: No such file"):
        load_public(tmp_path / "none.pub")
    os.mkfifo(tmp_path / "pipe.pub")
    with pytest.raises(FlytuneError, match="no file of keys"):
        load_public(tmp_path / "pipe.pub")


def test_own_key_is_made_once_and_trusted(folder: Path) -> None:
    keyid = key_id(keyring.own_key().public_key())
    assert key_id(keyring.own_key().public_key()) == keyid
    assert list(keyring.read_keyring().trusted) == [keyid]
    assert (folder / "own.pub").exists()
    for path in (folder, folder / "trusted"):
        assert path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FlytuneError, match="key exists"):
        keyring.make_own_key()
    assert list(keyring.read_keyring().trusted) == [keyid]


def test_own_key_of_eight_at_once(folder: Path) -> None:
    code = (
        "from flytune.caches.keyring import own_key\n"
        "from flytune.caches.key_files import key_id\n"
        "print(key_id(own_key().public_key()))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    found = {process.communicate()[0].strip() for process in running}
    assert set(keyring.read_keyring().trusted) == found
    assert len(found) == 1


def test_trusted_by_folder_variable_and_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyids = [
        key_id(generate(tmp_path / part / f"{name}.pem").public_key())
        for part, name in (("a", "one"), ("a", "two"), ("b", "three"), ("c", "four"))
    ]
    assert keyring.read_keyring().trusted == {}
    keyring.trust(load_public(tmp_path / "c/four.pub").key, "four")
    monkeypatch.setenv("FLYTUNE_TRUST", f"{tmp_path / 'a'}:")
    found = keyring.read_keyring([tmp_path / "b" / "three.pub"])
    assert sorted(found.trusted) == sorted(keyids)
    monkeypatch.setenv("FLYTUNE_TRUST", f"{tmp_path / 'none'}")
    with pytest.raises(FlytuneError, match=r"cannot read keys: .*none"):
        keyring.read_keyring()


@pytest.mark.parametrize("name", ["", "own.pub", "trusted", "revoked"])
def test_keys_that_others_can_write(folder: Path, name: str) -> None:
    keyring.own_key()
    keyring.revoke("0" * 64)
    (folder / "trusted" / "own.pub").write_bytes((folder / "own.pub").read_bytes())
    path = folder / "trusted" / name if name == "own.pub" else folder / name
    path.chmod(0o770)
    with pytest.raises(FlytuneError, match="keys can be written by other users"):
        keyring.read_keyring()


def test_key_of_another_user(folder: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    generate(tmp_path / "k.pem")
    os.chown(tmp_path / "k.pub", 1234, -1)
    with pytest.raises(FlytuneError, match="written by other users"):
        keyring.read_keyring([tmp_path / "k.pub"])
    keyring.own_key()
    os.chown(folder, 1234, -1)
    with pytest.raises(FlytuneError, match="written by other users"):
        keyring.own_key()


def test_revoked(folder: Path, tmp_path: Path) -> None:
    key = generate(tmp_path / "k.pem").public_key()
    keyring.trust(key, "k")
    for keyid in (key_id(key), "0" * 64, key_id(key)):
        keyring.revoke(keyid)
    assert keyring.read_keyring().revoked == {"0" * 64, key_id(key)}
    with pytest.raises(FlytuneError, match="key is revoked"):
        keyring.trust(key, "again")
    with pytest.raises(FlytuneError, match="not the id of a key: `abc`"):
        keyring.revoke("abc")
    (folder / "revoked").write_text(f"# stolen\n\n{'1' * 64}\n")
    assert keyring.read_keyring().revoked == {"1" * 64}


def test_a_list_of_a_fleet_revokes_too(folder: Path, tmp_path: Path) -> None:
    generate(tmp_path / "fleet" / "k.pem")
    (tmp_path / "fleet" / "revoked").write_text("2" * 64)
    assert keyring.read_keyring([tmp_path / "fleet"]).revoked == {"2" * 64}


def test_a_line_that_is_no_id_is_not_passed_over(folder: Path) -> None:
    keyring.own_key()
    (folder / "revoked").write_text("ac4f28079001ccb2\n")
    with pytest.raises(FlytuneError, match=r"not the id of a key: .*revoked"):
        keyring.read_keyring()


def test_a_host_without_a_home_trusts_what_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(tmp_path / "k.pem")

    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("FLYTUNE_KEYS", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert len(keyring.read_keyring([tmp_path / "k.pub"]).trusted) == 1
    with pytest.raises(FlytuneError, match="no home directory"):
        keyring.own_key()
