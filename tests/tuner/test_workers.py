import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from fakes import MISBEHAVIOURS, candidate, library, task
from ray import exceptions as broken

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner import ray_builders
from flytune.tuner.batches import Lost
from flytune.tuner.build_worker import Told, Unfit, build_in_turn
from flytune.tuner.candidate import BuildResult, TuneTask
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.ray_builders import next_of
from flytune.tuner.remote_runner import RemoteRunner
from flytune.tuner.runner import Device
from flytune.tuner.timing import TimingPlan
from flytune.tuner.workers import Farm

DEVICE = Device("test", cache_bytes=2**16, rotation_bytes=2**20)
QUICK = TimingPlan(warm_up=1, rounds=9, max_rounds=9, min_sample_us=1.0)
# A process that starts imports torch; one that runs needs only a moment.
DEADLINES = Deadlines(build_s=15.0, begin_s=240.0, check_s=12.0, measure_s=15.0)


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    with Farm(None, {"OMP_NUM_THREADS": "2", "FROM_POLICY": "1"}, DEADLINES) as made:
        yield made


@pytest.fixture
def runner(farm: Farm) -> Iterator[RemoteRunner]:
    (made,) = farm.runners(DEVICE, threads=2)
    yield made
    # It holds the cores of this host, for which others wait.
    made.stop()


def outcomes(runner: RemoteRunner, made: TuneTask) -> dict[str, tuple[Status, str]]:
    """Run a task of fakes that are all built; return how each ended."""
    names = [c.choice_hash for c in made.offered.candidates]
    builds = [BuildResult(name, Status.OK) for name in names]
    results = runner.run(made, builds, QUICK)
    assert [result.choice_hash for result in results] == names
    for result in results:
        if result.status is not Status.OK:
            assert result.samples_us == ()
            continue
        # Who is beaten leaves at one of the looks.
        least = QUICK.rough_rounds if result.beaten else QUICK.rounds
        assert least <= len(result.samples_us) <= QUICK.rounds
    return {r.choice_hash: (r.status, first_words(r.reason)) for r in results}


def first_words(reason: str) -> str:
    """Return a reason without what an exception says, and without its figures."""
    return re.sub(r" 0\.\d+", " x", reason.partition(":")[0])


DIED = (Status.FAULT, "the compiling process died")


def test_what_misbehaves_in_build_costs_only_its_own_row(farm: Farm) -> None:
    bad = [candidate(name, in_build=name) for name in MISBEHAVIOURS]
    good = [candidate(f"good {number}") for number in range(6)]
    mixed = [*good[:2], *bad, *good[2:], library()]
    results = [r for r in farm.build_all(mixed) if r]
    assert sorted(r.choice_hash for r in results) == sorted(
        c.choice_hash for c in mixed
    )
    ended = {r.choice_hash: (r.status, first_words(r.reason)) for r in results}
    for one in (*good, library()):
        assert ended.pop(one.choice_hash) == (Status.OK, "")
    assert ended == {
        "raise": (Status.COMPILE_ERROR, "ValueError"),
        "over resources": (Status.OVER_RESOURCES, "OutOfResources"),
        "abort": DIED,
        "segfault": DIED,
        "hang": (Status.TIMEOUT, "no result in 15.0 s"),
        "noise": (Status.OK, ""),
        "exit": DIED,
        "hard exit": DIED,
        "python memory": (Status.OUT_OF_MEMORY, "MemoryError"),
        "torch memory": (Status.OUT_OF_MEMORY, "RuntimeError"),
    }


def test_what_misbehaves_in_run_costs_only_its_own_row(runner: RemoteRunner) -> None:
    wrong = ("nan", "tail", "tile", "second")
    # How else a process dies is tested where it compiles.
    behaviours = MISBEHAVIOURS.keys() - {"segfault", "hard exit"}
    bad = [candidate(n, in_run=n) for n in (*behaviours, *wrong)]
    made = task([library(), *bad, candidate("good")], k=2560)
    died = (Status.FAULT, "the device's process died")
    assert outcomes(runner, made) == {
        "library": (Status.OK, ""),
        "raise": (Status.FAULT, "ValueError"),
        "over resources": (Status.OVER_RESOURCES, "OutOfResources"),
        "abort": died,
        "hang": (Status.TIMEOUT, "no result in 12 s"),
        "noise": (Status.OK, ""),
        "exit": died,
        "python memory": (Status.OUT_OF_MEMORY, "MemoryError"),
        "torch memory": (Status.OUT_OF_MEMORY, "RuntimeError"),
        "nan": (Status.WRONG_RESULT, "relative error nan exceeds x"),
        "tail": (Status.WRONG_RESULT, "relative error nan exceeds x"),
        "tile": (Status.WRONG_RESULT, "relative error x exceeds x"),
        "second": (Status.WRONG_RESULT, "a second launch differs by x"),
        "good": (Status.OK, ""),
    }


def test_what_fails_only_while_it_is_timed_is_found_out(runner: RemoteRunner) -> None:
    late = [
        candidate("late raise", in_run="raise", first_bad_launch=4),
        candidate("late abort", in_run="abort", first_bad_launch=4),
    ]
    assert outcomes(runner, task([library(), *late, candidate("good")])) == {
        "library": (Status.OK, ""),
        "late raise": (Status.FAULT, "ValueError"),
        "late abort": (Status.FAULT, "the device's process died"),
        "good": (Status.OK, ""),
    }


def test_a_single_candidate_that_dies_is_a_row(runner: RemoteRunner) -> None:
    dead = candidate("dead", in_run="abort")
    assert outcomes(runner, task([dead])) == {
        "dead": (Status.FAULT, "the device's process died")
    }


def test_the_next_build_of_a_fleet_has_the_cores(farm: Farm) -> None:
    (runner,) = farm.runners(DEVICE, threads=len(os.sched_getaffinity(0)))
    runner.start()
    farm.stop_runners()
    (result,) = filter(None, farm.build_all([candidate("next")]))
    assert result.status is Status.OK


def test_workers_may_be_warmed_before_there_is_work(farm: Farm) -> None:
    # Each has ended well; there are as many as may build at once.
    assert set(ray.get(farm.warm())) == {None}


def test_workers_have_the_policy_and_a_directory_of_their_own(farm: Farm) -> None:
    @ray.remote(num_cpus=0)
    def environment() -> dict[str, str]:
        return dict(os.environ)

    env = ray.get(environment.remote())
    assert (env["FROM_POLICY"], env["TORCHINDUCTOR_VEC_ISA_OK"]) == ("1", "1")


def test_a_build_that_waits_for_a_core_does_not_time_out(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tmp_path / "release"

    @ray.remote(num_cpus=1)
    def another_users_task() -> None:
        while not release.exists():
            time.sleep(0.05)

    elapsed = iter((10.0 * DEADLINES.build_s, 20.0 * DEADLINES.build_s))

    def clock() -> float:
        # Long waits while the cores are taken, and none from then on.
        if (now := next(elapsed, None)) is None:
            release.touch()
            return 20.0 * DEADLINES.build_s
        return now

    cores = int(ray.cluster_resources()["CPU"])
    busy = [another_users_task.remote() for _ in range(cores)]
    now = SimpleNamespace(monotonic=clock, sleep=time.sleep)
    monkeypatch.setattr(ray_builders, "time", now)
    try:
        three = [library("a"), library("b"), library("c")]
        results = [r for r in farm.build_all(three) if r]
    finally:
        release.touch()
        ray.get(busy, timeout=DEADLINES.begin_s)
    assert [r.status for r in results] == [Status.OK] * 3


def test_a_cluster_without_cores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", list)
    with pytest.raises(FlytuneError, match="has a core to build on"):
        list(Farm(None, {}, Deadlines()).build_all([library()]))


def said(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Told | Lost:
    """Return what the driver makes of a task that ends with an error of Ray."""

    def get(_: object) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    return next_of(iter([object()]))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (broken.WorkerCrashedError(), Status.FAULT),
        (broken.OutOfMemoryError("killed"), Status.OUT_OF_MEMORY),
        (broken.RayTaskError("f", "trace", ValueError("x")), Status.FAULT),
    ],
)
def test_a_worker_that_dies_may_be_its_candidates_fault(
    error: Exception, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = said(error, monkeypatch)
    assert isinstance(lost, Lost)
    assert (lost.status, lost.blames) == (status, True)


@pytest.mark.parametrize(
    "error", [broken.NodeDiedError("gone"), broken.ObjectLostError("ff", None, "")]
)
def test_a_node_that_leaves_is_no_candidates_fault(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = said(error, monkeypatch)
    assert isinstance(lost, Lost)
    assert not lost.blames


@pytest.mark.parametrize(
    "error",
    [
        broken.RuntimeEnvSetupError("no such file"),
        broken.LocalRayletDiedError(),
        broken.TaskUnschedulableError("no node"),
        broken.OutOfDiskError("full"),
        broken.RayTaskError(
            "f", "The remote function failed to import on the worker", RuntimeError()
        ),
    ],
)
def test_a_failure_of_ray_ends_the_build(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FlytuneError, match=r"^Ray cannot build here: ") as caught:
        said(error, monkeypatch)
    assert "\n" not in str(caught.value)


def test_a_node_that_lacks_a_tool_ends_the_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacks = FlytuneError("FlyDSL is not installed", hint="install it")
    with pytest.raises(FlytuneError, match="FlyDSL is not installed") as caught:
        said(broken.RayTaskError("f", "trace", lacks), monkeypatch)
    assert caught.value.hint == "install it"


def test_a_full_disk_is_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/tmp/x")
    with pytest.raises(FlytuneError, match=r"^no space left for the workers' files: "):
        said(broken.RayTaskError("f", "trace", full), monkeypatch)
    # A compiler's own words may be any.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    batch = [library(), candidate("x", in_build="raise"), candidate("y")]
    ((first, second, third),) = build_in_turn(batch, None, "here")
    assert (first.status, third.status) == (Status.OK, Status.OK)
    assert second.status is Status.COMPILE_ERROR
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    done, told = build_in_turn(batch, None, "here")
    assert done == (BuildResult("library", Status.OK),)
    assert told == Unfit("here", f"No space left on device: {tmp_path}")
