"""Simulated clusters: the driver is a build's own, the clock is not."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from flytune.tuner.batches import build_batches

Bench = Callable[[str], ModuleType]


@pytest.fixture
def scale(bench: Bench) -> ModuleType:
    return bench("scale")


@pytest.fixture
def durations(scale: ModuleType) -> tuple[Any, Any]:
    tasks = scale._tasks(2000)
    return tasks, scale._durations(tasks, seed=0)


def test_a_seed_gives_the_same_durations(scale: ModuleType) -> None:
    tasks = scale._tasks(200)
    assert scale._durations(tasks, 1) == scale._durations(tasks, 1)
    assert scale._durations(tasks, 1) != scale._durations(tasks, 2)


@pytest.mark.parametrize(("devices", "cores"), [(1, 8), (4, 64)])
def test_a_cluster_is_never_faster_than_its_parts(
    scale: ModuleType, durations: tuple[Any, Any], devices: int, cores: int
) -> None:
    tasks, seconds = durations
    row = scale._simulated(tasks, seconds, devices, cores, scale.RayCalls(0.0, 0.0))
    assert row["ideal_s"] <= row["took_s"]
    assert row["devices_busy_pct"] <= 100
    assert 0 < row["driver_ms"] <= row["all_ms"]
    # Each list of twenty takes several batches, and each batch several candidates.
    assert len(tasks) < row["batches"] < 20 * len(tasks)


def test_what_calls_of_the_cluster_cost_delays_it(
    scale: ModuleType, durations: tuple[Any, Any]
) -> None:
    """A driver that needs a second for a batch keeps few cores busy."""
    tasks, seconds = durations
    slow = scale._simulated(tasks[:10], seconds, 4, 64, scale.RayCalls(1.0, 0.0))
    assert slow["took_s"] > slow["batches"]
    assert slow["driver_and_ray_ms"] > 1000 * slow["batches"] / 200


def test_cores_take_one_batch_each(scale: ModuleType, bench: Bench) -> None:
    simulated = bench("simulated")
    clock = simulated.Clock()
    builders = simulated.SimulatedBuilders(clock, 2, lambda _: 3.0)
    (task,) = scale._tasks(20)
    results = build_batches(task.offered.candidates, builders)
    assert len([result for result in results if result]) == 20
    # Twenty of three seconds on two cores, and what the driver took.
    assert 30.0 <= clock.now < 30.0 + clock.driver_s + 1e-6
