"""A small run of each kind of fault, without torch, and the proof that loss is seen."""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flytune.caches import placing
from flytune.caches.bundle import Bundle
from flytune.caches.keyring import own_key
from flytune.caches.manifest import Manifest
from flytune.caches.packing import pack
from flytune.caches.target import Target

FILES = {
    "inductor/fxgraph/ab/fabc/0123": b"graph",
    "inductor/xy/cxyz.main.so": b"\x7fELF of a library",
    "inductor/cache/5e1f": b'{"system": {}, "cache": {"mm": {}}}',
}


@pytest.fixture
def faults(bench: Callable[[str], ModuleType]) -> ModuleType:
    return bench("faults")


@pytest.fixture
def first(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "made" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    manifest = Manifest(
        **{"created": "2026-01-02T03:04:05Z", "flytune": "0.1.0", "program": {}},
        **{"model": {"name": "tiny"}, "policy": {"threads": 1}, "inductor_config": {}},
        **{"target": Target.here(threads=1).to_json(), "software": "serving"},
        **{"timed_on": None, "coverage": {}, "winners": (), "bake": {}},
    )
    return pack(tmp_path / "made", manifest, tmp_path / "first", keys=[own_key()])


@pytest.fixture
def bundles(faults: ModuleType, first: Path, tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "bundles"
    folder.mkdir()
    made: dict[str, Path] = faults.prepared(Bundle.open(first), folder)
    return made


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions set both."""
    monkeypatch.setenv("FLYTUNE_HOME", "")
    monkeypatch.setenv("FLYTUNE_STATUS_DIR", "")


def test_eight_install_at_once(
    bench: Callable[[str], ModuleType], bundles: dict[str, Path], tmp_path: Path
) -> None:
    loader = bench("loader")
    rows = loader.at_once(bundles["archive"], tmp_path / "home", 8)
    row = loader.of_loaders(rows, 0.1)
    assert (row["hits"], row["misses"], row["failed"], row["mended"]) == (8, 0, 0, 0)
    (place,) = (tmp_path / "home" / "installed").glob("[!.]*")
    # The paths in it are those of the place.
    group = "inductor/triton/0/KEY/__grp__k.json"
    assert loader.unlike_files(bundles["directory"], place) == [group]
    (place / "inductor/fxgraph/ab/fabc/0123").write_bytes(b"Graph")
    assert len(loader.unlike_files(bundles["directory"], place)) == 2


@pytest.mark.usefixtures("restored")
def test_a_kill_of_each_kind_loses_nothing(
    faults: ModuleType, bundles: dict[str, Path], tmp_path: Path
) -> None:
    rows = faults.killed_all(tmp_path / "scenes", bundles, 18, seed=1)
    assert len({row["kind"] for row in rows}) == 9
    assert sum(row["inputs"] for row in rows) == 18
    assert [(row["lost"], row["wrong"], row["left"]) for row in rows] == [
        (0, 0, [])
    ] * 9


@pytest.mark.usefixtures("restored")
def test_what_a_kill_breaks_is_seen(
    bench: Callable[[str], ModuleType],
    bundles: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills, forked = bench("kills"), bench("forked")

    scene = kills.Install(tmp_path, bundles["directory"], mends=False)
    scene.before()
    monkeypatch.setattr(placing, "_write_marker", lambda *_: os.kill(os.getpid(), 9))
    assert forked.run(scene.act) == forked.KILLED
    assert scene.state() == kills.OLD
    (half,) = scene._place.parent.glob(".*.flytune-*")
    # As if it had been written in place, a file after the other.
    half.rename(scene._place)
    assert scene.state() == kills.WRONG


@pytest.mark.usefixtures("restored")
def test_each_corruption_is_refused_mended_or_served_without(
    faults: ModuleType, first: Path
) -> None:
    def corrupted(folder: Path) -> list[dict[str, Any]]:
        (folder / "damaged").mkdir()
        made = faults.prepared(Bundle.open(first), folder)
        into = folder / "damaged"
        rows: list[dict[str, Any]] = faults.corrupted(into, made, 1, 1, thorough=False)
        return rows

    rows = faults.in_memory(corrupted)
    bad = [row for row in rows if row["lost"] or row["wrong"]]
    assert bad == []
    assert sum(row["inputs"] for row in rows) > 200
    ends = {name for row in rows for name in faults.OUTCOMES if row[name]}
    assert ends == {"refused", "mended", "served without", "served whole"}
