import os
import re
from collections.abc import Iterator

import pytest
import ray
from fakes import MISBEHAVIOURS, candidate, library, task

from flytune.caches.columns import Status
from flytune.tuner.candidate import BuildResult, TuneTask
from flytune.tuner.runner import Device
from flytune.tuner.timing import TimingPlan
from flytune.tuner.workers import Deadlines, Farm, RemoteRunner

DEVICE = Device("test", cache_bytes=2**16, rotation_bytes=2**20)
QUICK = TimingPlan(warm_up=1, rounds=9, max_rounds=9, min_sample_us=1.0)
# A process that starts imports torch; one that runs needs only a moment.
DEADLINES = Deadlines(build_s=15.0, begin_s=240.0, check_s=12.0, measure_s=15.0)


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    with Farm(None, {"OMP_NUM_THREADS": "2", "FROM_POLICY": "1"}, DEADLINES) as made:
        yield made


@pytest.fixture(scope="module")
def runner(farm: Farm) -> RemoteRunner:
    return farm.runner(DEVICE, threads=2)


def outcomes(runner: RemoteRunner, made: TuneTask) -> dict[str, tuple[Status, str]]:
    """Run a task of fakes that are all built; return how each ended."""
    names = [c.choice_hash for c in made.offered.candidates]
    builds = [BuildResult(name, Status.OK) for name in names]
    results = runner.run(made, builds, QUICK)
    assert [result.choice_hash for result in results] == names
    for result in results:
        assert len(result.samples_us) == (9 if result.status is Status.OK else 0)
    return {r.choice_hash: (r.status, first_words(r.reason)) for r in results}


def first_words(reason: str) -> str:
    """Return a reason without what an exception says, and without its figures."""
    return re.sub(r" 0\.\d+", " x", reason.partition(":")[0])


DIED = (Status.FAULT, "the compiling process died")


def test_what_misbehaves_in_build_costs_only_its_own_row(farm: Farm) -> None:
    bad = [candidate(name, in_build=name) for name in MISBEHAVIOURS]
    good = [candidate(f"good {number}") for number in range(6)]
    mixed = [*good[:2], *bad, *good[2:], library()]
    results = list(farm.build_all(mixed))
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
        "loop": (Status.TIMEOUT, "no result in 15.0 s"),
        "noise": (Status.OK, ""),
        "exit": DIED,
        "hard exit": DIED,
        "python memory": (Status.OUT_OF_MEMORY, "MemoryError"),
        "torch memory": (Status.OUT_OF_MEMORY, "RuntimeError"),
    }


def test_what_misbehaves_in_run_costs_only_its_own_row(runner: RemoteRunner) -> None:
    wrong = ("nan", "tail", "tile", "second")
    bad = [candidate(n, in_run=n) for n in (*MISBEHAVIOURS, *wrong)]
    made = task([library(), *bad, candidate("good")], k=2560)
    died = (Status.FAULT, "the device's process died")
    assert outcomes(runner, made) == {
        "library": (Status.OK, ""),
        "raise": (Status.FAULT, "ValueError"),
        "over resources": (Status.OVER_RESOURCES, "OutOfResources"),
        "abort": died,
        "segfault": died,
        "loop": (Status.TIMEOUT, "no result in 12 s"),
        "noise": (Status.OK, ""),
        "exit": died,
        "hard exit": died,
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


def test_workers_have_the_policy_and_a_directory_of_their_own(farm: Farm) -> None:
    @ray.remote(num_cpus=0)
    def environment() -> dict[str, str]:
        return dict(os.environ)

    env = ray.get(environment.remote())
    assert (env["FROM_POLICY"], env["TORCHINDUCTOR_VEC_ISA_OK"]) == ("1", "1")
