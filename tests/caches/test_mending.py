"""What lies in the place of an installed file or folder, and flytune's own files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from bundles import installable
from spoiled import (
    GRAPH,
    WHOLE,
    flip,
    fold,
    found,
    pipe,
    placed,
)

from flytune.caches.bundle import Bundle
from flytune.caches.hook.flytune_files import read_activation, set_aside
from flytune.caches.packing import sign
from flytune.caches.prepare import prepare
from flytune.shapes.errors import FlytuneError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return installable(tmp_path, "b", files=WHOLE)


@pytest.mark.parametrize("folder", ["inductor", "inductor/fxgraph/ab"])
@pytest.mark.parametrize("link", [False, True])
def test_what_is_in_the_place_of_a_folder(
    bundle: Path, tmp_path: Path, folder: str, link: bool
) -> None:
    directory = placed(bundle)
    before = {path: (directory / path).read_bytes() for path in WHOLE}
    elsewhere = tmp_path / "elsewhere"
    (directory / folder).rename(elsewhere)
    if link:
        # Whoever can write there changes what would be loaded.
        (directory / folder).symlink_to(elsewhere)
    else:
        (directory / folder).write_text("in the way")
    inside = sorted(path for path in WHOLE if path.startswith(f"{folder}/"))
    assert sorted(found(directory)) == inside
    there = sorted(elsewhere.rglob("*"))
    assert list(prepare(bundle).mended) == inside
    assert {path: (directory / path).read_bytes() for path in WHOLE} == before
    assert not (directory / folder).is_symlink()
    assert sorted(elsewhere.rglob("*")) == there


def test_a_linked_folder_is_set_aside_and_not_what_it_names(
    bundle: Path, tmp_path: Path
) -> None:
    directory = placed(bundle)
    (directory / "inductor/fxgraph").rename(tmp_path / "elsewhere")
    (directory / "inductor/fxgraph").symlink_to(tmp_path / "elsewhere")
    assert set_aside(str(directory), found(directory)) == ([GRAPH], [])
    assert (tmp_path / "elsewhere/ab/fabc/0123").read_bytes() == WHOLE[GRAPH]
    assert not (directory / "inductor/fxgraph").exists()


def test_a_damaged_marker_costs_nothing_that_is_whole(bundle: Path) -> None:
    directory = placed(bundle)
    (directory / "inductor/added").write_text("by serving")
    (directory / "installed.json").write_bytes(b"{")
    (bundle / GRAPH).unlink()
    # The bundle cannot make it anew, and what is installed is whole.
    assert prepare(bundle).mended == ("installed.json",)
    assert (directory / "inductor/added").exists()
    assert (directory / GRAPH).read_bytes() == WHOLE[GRAPH]


def test_a_place_without_a_marker_goes_when_the_bundle_is_whole(bundle: Path) -> None:
    directory = placed(bundle)
    (directory / "installed.json").unlink()
    graph = (bundle / GRAPH).read_bytes()
    (bundle / GRAPH).unlink()
    with pytest.raises(FlytuneError, match="lacks a file"):
        prepare(bundle)
    assert (directory / GRAPH).read_bytes() == graph
    (bundle / GRAPH).write_bytes(graph)
    assert prepare(bundle).mended == ("installed.json",)


OWN = ("installed.json", "activation.json", "manifest.json")


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("damage", [flip, fold, pipe])
def test_flytunes_own_files_are_mended(
    bundle: Path, name: str, damage: Callable[[Path], None]
) -> None:
    directory = placed(bundle)
    before = (directory / name).read_bytes()
    damage(directory / name)
    assert prepare(bundle).mended == (name,)
    assert (
        json.loads((directory / name).read_bytes()).keys() == json.loads(before).keys()
    )
    assert prepare(bundle).mended == ()


def test_another_signature_is_no_damage(bundle: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    directory = placed(bundle)
    sign(Bundle.open(bundle), Ed25519PrivateKey.generate())
    assert prepare(bundle).mended == ()
    signature = (bundle / "signature.json").read_bytes()
    assert (directory / "signature.json").read_bytes() == signature


def test_another_bit_of_the_activation_is_not_served(bundle: Path) -> None:
    directory = placed(bundle)
    path = directory / "activation.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"max_autotune":true', b'"max_autotune":1234'))
    assert path.read_bytes() != content
    with pytest.raises(ValueError, match="not as it was installed"):
        read_activation(str(directory))


def test_what_is_whole_is_served_from_a_full_disk(bundle: Path) -> None:
    directory = placed(bundle)
    before = {path: path.stat().st_ino for path in directory.iterdir()}
    assert prepare(bundle).mended == ()
    # Nothing is written anew that is as it should be.
    assert {path: path.stat().st_ino for path in directory.iterdir()} == before
