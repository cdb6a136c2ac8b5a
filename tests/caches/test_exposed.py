"""Where other users could put what is loaded as code: modes and owners of folders."""

import os
from pathlib import Path

import pytest

from flytune.caches.hook import flytune_files


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed directory, two below a home."""
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    place = tmp_path / "home" / "installed" / "0123"
    for path in (place.parents[1], place.parent, place):
        path.mkdir(mode=0o700)
    return place


@pytest.mark.parametrize(
    ("name", "mode", "refused"),
    [
        ("home/installed/0123", 0o700, False),
        ("home/installed/0123", 0o755, False),
        ("home/installed/0123", 0o720, True),
        ("home/installed/0123", 0o702, True),
        ("home/installed/0123", 0o1777, True),
        ("home/installed", 0o777, True),
        ("home/installed", 0o1777, False),
        ("home", 0o770, True),
        (".", 0o777, False),
    ],
)
def test_what_lets_others_write(
    tmp_path: Path, place: Path, name: str, mode: int, refused: bool
) -> None:
    path = tmp_path / name
    path.chmod(mode)
    found = flytune_files.exposed(str(place))
    assert found == (str(path) if refused else None)


@pytest.mark.parametrize(("mode", "refused"), [(0o700, False), (0o755, True)])
def test_what_others_can_enter_is_looked_through(
    place: Path, mode: int, refused: bool
) -> None:
    (place / "inductor").mkdir()
    (place / "inductor" / "kernel.so").touch()
    (place / "inductor" / "link").symlink_to("kernel.so")
    place.chmod(mode)
    assert flytune_files.exposed(str(place)) is None
    for path in (place / "inductor", place / "inductor" / "kernel.so"):
        path.chmod(0o777)
        assert flytune_files.exposed(str(place)) == (str(path) if refused else None)
        path.chmod(0o700)


def test_the_users_home_is_the_last(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLYTUNE_HOME")
    monkeypatch.setenv("HOME", str(place.parents[1]))
    place.parents[2].chmod(0o777)
    assert flytune_files.exposed(str(place)) is None
    place.parent.chmod(0o777)
    assert flytune_files.exposed(str(place)) == str(place.parent)


def test_outside_of_a_home_all_above_counts(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "other"))
    tmp_path.chmod(0o777)
    assert flytune_files.exposed(str(place)) == str(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert flytune_files.exposed(str(place)) is None


def test_a_link_is_followed_to_what_it_names(tmp_path: Path, place: Path) -> None:
    (tmp_path / "link").symlink_to(place)
    place.parent.chmod(0o777)
    assert flytune_files.exposed(str(tmp_path / "link")) == str(place.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("name", ["home/installed/0123", "home"])
def test_an_owner_can_write(tmp_path: Path, place: Path, name: str) -> None:
    os.chown(tmp_path / name, 1234, -1)
    assert flytune_files.exposed(str(place)) == str(tmp_path / name)
