"""How much the farm asks of the nodes, and lets a compilation take."""

import resource
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from fakes import candidate

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner import autoscaling, build_worker, ray_builders
from flytune.tuner.build_worker import _memory_cap
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.ray_builders import (
    Limits,
    RayBuilders,
    build_needs,
    builds_at_once,
)
from flytune.tuner.runner import Device
from flytune.tuner.workers import Farm

GIB = 2**30


def node(cores: float, gib: float | None = None, alive: bool = True) -> dict[str, Any]:
    """A node as Ray lists it; what it has none of is not among its resources."""
    resources = {"CPU": cores} if cores else {}
    if gib is not None:
        resources["memory"] = gib * GIB
    return {"Alive": alive, "Resources": resources}


@pytest.mark.parametrize(
    ("nodes", "slots"),
    [
        ([], 0),
        ([node(0)], 0),
        ([node(8)], 8),
        ([node(8, 64.0)], 8),
        # A build for each GiB.
        ([node(8, 3.5)], 3),
        ([node(8, 3.5), node(4, 100.0)], 7),
        # A node that cannot hold a single one beside a node that can.
        ([node(8, 0.5), node(4, 8.0)], 4),
        # Where none can, or none says, cores alone count.
        ([node(8, 0.5)], 8),
        ([node(8, 0.5), node(2)], 10),
        # A node that says nothing gets none while another one declares its memory.
        ([node(8), node(2, 8.0)], 2),
        ([node(8, 8.0, alive=False), node(1, 4.0)], 1),
        ([node(8, 8.0, alive=False)], 0),
        ([node(0.5, 8.0)], 0),
    ],
)
def test_builds_at_once(nodes: list[dict[str, Any]], slots: int) -> None:
    assert builds_at_once(nodes) == slots


@pytest.mark.parametrize(
    ("nodes", "memory"),
    [
        ([], None),
        ([node(8)], None),
        ([node(8, 0.5)], None),
        ([node(8, 64.0, alive=False), node(8)], None),
        ([node(8, 1.0)], GIB),
        ([node(8), node(8, 64.0)], GIB),
        # Who has no core tells nothing of the nodes that are to come.
        ([node(0, 64.0)], None),
        ([node(0, 64.0), node(8)], None),
    ],
)
def test_what_a_build_asks_of_ray(
    nodes: list[dict[str, Any]], memory: int | None
) -> None:
    asked = {"num_cpus": 1} if memory is None else {"num_cpus": 1, "memory": memory}
    assert build_needs(nodes) == asked


@pytest.mark.parametrize(
    ("slots", "steps"),
    [(8, [4, 2, 1, 1]), (5, [2, 1, 1]), (1, [1, 1])],
)
def test_each_throttling_halves_what_is_built_at_once(
    monkeypatch: pytest.MonkeyPatch, slots: int, steps: list[int]
) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [node(slots)])
    farm = Farm(None, {}, Deadlines())
    assert [farm.throttle() for _ in steps] == steps


def test_nodes_that_are_away_for_a_while_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [node(2)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray_builders, "_NODES_S", -1.0)
    limits = Limits()
    assert RayBuilders(None, Deadlines(), limits).most_at_once() == 4
    nodes.clear()
    said: list[str] = []
    # In the build that goes on, and in the next of the same driver.
    for _ in range(2):
        builders = RayBuilders(None, Deadlines(), limits, say=said.append)
        # Who would add a node does so for what waits for it.
        assert builders.most_at_once() == 1
    assert said == [
        "build: no node of the Ray cluster has a core to build on: waiting for one, "
        "15 min 00 s at most"
    ]
    impatient = RayBuilders(None, Deadlines(absent_s=-1.0), limits)
    with pytest.raises(FlytuneError, match="has had no node to build on for"):
        impatient.most_at_once()
    nodes.append(node(1))
    assert RayBuilders(None, Deadlines(), limits).most_at_once() == 2


@pytest.mark.parametrize("grows", [True, False])
def test_who_never_had_a_node_waits_where_one_may_come(
    grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(autoscaling, "may_grow", lambda: grows)
    said: list[str] = []
    builders = RayBuilders(None, Deadlines(), Limits(), say=said.append)
    if grows:
        assert [builders.most_at_once() for _ in range(2)] == [1, 1]
        assert len(said) == 1
        return
    with pytest.raises(FlytuneError) as caught:
        builders.most_at_once()
    assert str(caught.value) == "no node of the Ray cluster has a core to build on"
    assert said == []


def test_a_farm_that_is_throttled_builds_everything_one_after_another() -> None:
    names = [f"good {number}" for number in range(5)]
    with Farm(None, {}, Deadlines()) as farm:
        building = farm.build_all([candidate(name) for name in names])
        first = next(result for result in building if result is not None)
        while farm.throttle() > 1:
            pass
        results = [first, *(result for result in building if result is not None)]
        assert sorted(r.choice_hash for r in results) == names
        assert {r.status for r in results} == {Status.OK}
        with pytest.raises(FlytuneError) as caught:
            farm.runners(Device("NVIDIA H200", 2**20, 2**30, "cuda"), threads=1)
    assert str(caught.value) == "no node of the Ray cluster has a device: NVIDIA H200"


@pytest.fixture
def small_cap(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(build_worker, "_BUILD_CAP_BYTES", 2**28)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    yield 2**28
    resource.setrlimit(resource.RLIMIT_DATA, before)


def test_a_build_that_takes_too_much_fails_and_harms_no_later_one(
    small_cap: int,
) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with _memory_cap():
        assert len(bytearray(small_cap // 4)) == small_cap // 4
        with pytest.raises(MemoryError):
            bytearray(2 * small_cap)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    with pytest.raises(ZeroDivisionError), _memory_cap():
        raise ZeroDivisionError
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytearray(2 * small_cap)) == 2 * small_cap


def test_a_cap_counts_from_what_the_process_has_already(small_cap: int) -> None:
    held = bytearray(4 * small_cap)
    with _memory_cap():
        assert len(bytearray(small_cap // 4)) == small_cap // 4
    assert len(held) == 4 * small_cap
