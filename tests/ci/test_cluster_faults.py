"""A build on a cluster whose parts are killed: real Ray, real processes."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow
LISTS = 30


@pytest.fixture
def cluster_faults(bench: Callable[[str], ModuleType]) -> ModuleType:
    return bench("cluster_faults")


_IN_PEACE: list[list[object]] = []


@pytest.fixture
def expected(
    cluster_faults: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> list[list[object]]:
    """What a build in peace decides; made once."""
    if not _IN_PEACE:
        work = tmp_path_factory.mktemp("peace") / "work"
        row = cluster_faults.run(work, LISTS, 0.05, kills=0)
        assert (row["drivers"], row["compiled_again"], row["timed_again"]) == (1, 0, 0)
        _IN_PEACE.extend(cluster_faults.records(work))
    assert len(_IN_PEACE) == 20 * LISTS
    assert {status for _, status, *_ in _IN_PEACE} == {"ok"}
    return _IN_PEACE


@pytest.mark.parametrize(
    ("every", "kills"),
    [
        ({}, 8),
        ({"runner": 1}, 4),
        ({"raylet": 1}, 3),
        ({"driver": 1}, 2),
        ({"head": 1}, 1),
    ],
    ids=["worker", "runner", "raylet", "driver", "head"],
)
def test_the_records_are_those_of_a_build_in_peace(
    tmp_path: Path,
    cluster_faults: ModuleType,
    expected: list[list[object]],
    every: dict[str, int],
    kills: int,
) -> None:
    work = tmp_path / "work"
    row = cluster_faults.run(work, LISTS, 0.2, kills, pause_s=1.0, every=every)
    assert sum(row["kills"].values()) == kills
    assert cluster_faults.records(work) == expected
    # A kill costs what was under way: a batch, and a list for each device.
    assert row["compiled_again"] <= 100 * kills
    assert row["timed_again"] <= cluster_faults.NODES * kills
    assert row["drivers"] == 1 + sum(
        number for what, number in row["kills"].items() if what in ("driver", "head")
    )


def test_two_builds_at_once_wait_for_each_other(
    tmp_path: Path, cluster_faults: ModuleType, expected: list[list[object]]
) -> None:
    cluster = cluster_faults.start_cluster()
    try:
        works = [tmp_path / name for name in ("one", "two")]
        given = (LISTS, 0.05)
        drivers = [
            cluster_faults.start_driver(cluster.address, work, *given) for work in works
        ]
        assert [driver.wait(timeout=600) for driver in drivers] == [0, 0]
    finally:
        cluster.shutdown()
    for work in works:
        assert cluster_faults.records(work) == expected
        assert len((work / "compiled.txt").read_text().splitlines()) == 20 * LISTS
        assert len((work / "timed.txt").read_text().splitlines()) == LISTS
