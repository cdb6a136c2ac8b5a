"""`flytune keygen`, `sign` and `trust`, and what the other commands say of signers."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from builds import flytune
from click.testing import CliRunner, Result
from small_bundles import small_bundle

from flytune.caches.bundle import Bundle
from flytune.caches.key_files import generate, key_id, load_public
from flytune.caches.keyring import own_key, read_keyring
from flytune.caches.packing import pack
from flytune.shapes.errors import FlytuneError
from flytune.tuner import build
from flytune.tuner.cli import main
from flytune.tuner.progress import Progress


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLYTUNE_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    # Inductor, where another test imported it, has set it for children.
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    return tmp_path / "keys"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle for this host that nobody signed."""
    provenance = {"command": ["flytune", "build"], "commit": "ab" * 20}
    return small_bundle(tmp_path, signed=False, provenance=provenance)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def done(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_keygen_makes_the_users_own_once(folder: Path) -> None:
    said = done("keygen").splitlines()
    keyid = key_id(own_key().public_key())
    assert said == [
        f"key      {keyid}",
        f"private  {folder / 'own.pem'}",
        f"public   {folder / 'own.pub'}",
    ]
    assert done("trust", "--list").startswith(f"trusted  {keyid}  {folder}/trusted/")
    again = run("keygen")
    assert again.exit_code == 1
    assert again.stderr.startswith(f"error: key exists: {folder / 'own.pem'}\nhint: ")


def test_keygen_elsewhere_trusts_nothing(folder: Path, tmp_path: Path) -> None:
    done("keygen", "--out", tmp_path / "ci.pem")
    assert (tmp_path / "ci.pub").exists()
    assert not folder.exists()


def test_sign_then_install(bundle: Path) -> None:
    refused = run("install", bundle)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == (
        "error: bundle is not signed by a key that is trusted here: "
        f"{bundle}: signed by nobody (FT610)\n"
        "hint: trust its signer: `flytune trust KEY.pub`, or --trust KEY.pub; or pin "
        "it by a digest that you know: BUNDLE@sha256:DIGEST; or load whatever it "
        "holds: --allow-unsigned\n"
    )
    said = done("sign", bundle)
    digest = Bundle.open(bundle).digest
    assert said.splitlines() == [
        f"signed   {bundle}@sha256:{digest}",
        f"key      {key_id(own_key().public_key())}",
    ]
    assert "export TORCHINDUCTOR_CACHE_DIR=" in done("install", bundle)


def test_signed_with_a_key_of_ones_own_choice(bundle: Path, tmp_path: Path) -> None:
    generate(tmp_path / "ci.pem")
    done("sign", bundle, "--key", tmp_path / "ci.pem")
    assert run("install", bundle).exit_code == 1
    assert "export" in done("install", bundle, "--trust", tmp_path / "ci.pub")
    done("trust", tmp_path / "ci.pub")
    assert "export" in done("install", bundle)


def test_revoke_and_list(bundle: Path, tmp_path: Path, folder: Path) -> None:
    generate(tmp_path / "ci.pem")
    keyid = load_public(tmp_path / "ci.pub").keyid
    path = folder / "trusted" / f"ci-{keyid[:16]}.pub"
    said = done("trust", tmp_path / "ci.pub", "--list").splitlines()
    assert said == [f"trusted  {keyid}  {path}"] * 2
    done("sign", bundle, "--key", tmp_path / "ci.pem")
    said = done("trust", "--revoke", keyid, "--list").splitlines()
    assert said == [
        f"revoked  {keyid}  {folder / 'revoked'}",
        f"revoked  {keyid}  {path}",
    ]
    row = json.loads(done("trust", "--json"))
    assert row == {"keyid": keyid, "standing": "revoked", "path": str(path)}
    refused = run("install", bundle, "--trust", tmp_path / "ci.pub")
    assert f"signed by {keyid} (revoked)" in refused.stderr


def test_trust_of_nothing_is_wrong_usage(tmp_path: Path, folder: Path) -> None:
    assert run("trust").exit_code == 2
    (tmp_path / "no.pub").write_text("no key")
    generate(tmp_path / "ci.pem")
    refused = run("trust", tmp_path / "ci.pub", tmp_path / "no.pub")
    assert refused.stderr == f"error: no public key: {tmp_path / 'no.pub'}\n"
    assert not folder.exists()


@pytest.mark.parametrize("command", ["install", "exec", "verify"])
def test_the_ways_past_a_missing_signature(bundle: Path, command: str) -> None:
    strict, more = (), ()
    if command == "exec":
        strict, more = ("--strict",), ("--", sys.executable, "-c", "1")
    refused = run(command, *strict, bundle, *more)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: bundle is not signed by a key that is")
    wrong = run(command, *strict, f"{bundle}@sha256:{'0' * 64}", *more)
    error, hint = wrong.stderr.splitlines()
    assert error.startswith("error: bundle has another digest than the one")
    assert hint == "hint: fetch the bundle that was meant, or correct the digest"


def test_exec_goes_on_without_a_bundle_of_nobodys(bundle: Path, tmp_path: Path) -> None:
    code = "import os; print(os.environ.get('TORCHINDUCTOR_CACHE_DIR'))"
    command = ("--", sys.executable, "-c", code)
    ran = flytune(tmp_path / "home", "exec", bundle, *command)
    assert (ran.returncode, ran.stdout) == (0, "None\n")
    assert ran.stderr == (
        "flytune: bundle not used: bundle is not signed by a key that is trusted here: "
        f"{bundle}: signed by nobody (FT610)\n"
    )
    ran = flytune(tmp_path / "home", "exec", "--allow-unsigned", bundle, *command)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(str(tmp_path / "home"))


def test_install_pinned_or_allowed(bundle: Path) -> None:
    digest = Bundle.open(bundle).digest
    assert "export" in done("install", f"{bundle}@sha256:{digest}")
    assert "export" in done("install", bundle, "--allow-unsigned")


def test_inspect_names_signers_origin_and_parts(bundle: Path, tmp_path: Path) -> None:
    said = done("inspect", bundle)
    assert "signed by nobody" in said
    assert "checked   the manifest alone; the files that it lists were not" in said
    generate(tmp_path / "ci.pem")
    done("sign", bundle, "--key", tmp_path / "ci.pem")
    done("sign", bundle)
    said = done("inspect", bundle, "--check")
    ours = key_id(own_key().public_key())
    theirs = load_public(tmp_path / "ci.pub").keyid
    assert f"signed by {theirs} (unknown)\n          {ours} (trusted)\n" in said
    assert "checked   the manifest and 1 files: all whole" in said
    assert f"origin    command flytune build, commit {'ab' * 20}\n" in said
    assert "          graphs 0.0 kB in 1\n" in said
    row = json.loads(done("inspect", bundle, "--json", "--trust", tmp_path / "ci.pub"))
    assert row["signers"] == [
        {"keyid": theirs, "standing": "trusted"},
        {"keyid": ours, "standing": "trusted"},
    ]
    assert (row["checked"], row["parts"]) == (False, {"graphs": 5})
    assert row["provenance"]["commit"] == "ab" * 20


def test_inspect_of_a_damaged_bundle(bundle: Path, tmp_path: Path) -> None:
    opened = Bundle.open(bundle)
    folder = pack(tmp_path / "staged", opened.manifest, tmp_path / "b")
    (folder / "inductor" / "fxgraph" / "g").write_bytes(b"other")
    assert "were not read (--check)" in done("inspect", folder)
    refused = run("inspect", folder, "--check")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: file in bundle has another digest than")


def keys_of(**options: Any) -> tuple[Any, ...]:
    asked = SimpleNamespace(**({"sign": True, "key": None} | options))
    return build.signing_keys(cast(Any, asked), Progress())


def test_the_first_build_makes_the_users_own_key(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = keys_of()
    said = capsys.readouterr().err
    path = folder / "own.pem"
    assert f"sign: making your own key, trusted on this machine: {path}" in said
    (second,) = keys_of()
    assert capsys.readouterr().err == ""
    assert key_id(first.public_key()) == key_id(second.public_key())
    assert list(read_keyring().trusted) == [key_id(first.public_key())]


def test_a_build_signs_with_the_key_that_is_named(tmp_path: Path, folder: Path) -> None:
    generate(tmp_path / "ci.pem")
    (key,) = keys_of(key=tmp_path / "ci.pem")
    assert key_id(key.public_key()) == load_public(tmp_path / "ci.pub").keyid
    assert keys_of(sign=False) == ()
    assert not folder.exists()
    with pytest.raises(FlytuneError, match="cannot read keys"):
        keys_of(key=tmp_path / "none.pem")
