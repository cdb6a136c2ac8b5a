import functools
import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import Status
from flytune.caches.policy import cpu_policy
from flytune.caches.program import ProgramSpec
from flytune.caches.records import TuningRecord, write_records
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError
from flytune.shapes.registry import find_model
from flytune.tuner import quiet, work
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.decision import Decision, decide, timings
from flytune.tuner.journal import Journal
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.quarantine import EXCLUDED, NAME, Quarantine
from flytune.tuner.search import search
from flytune.tuner.timed_device import device_of
from flytune.tuner.timing import TimingPlan
from flytune.tuner.work import farm_for
from flytune.tuner.workers import Farm

QUICK = TimingPlan(warm_up=1, rounds=9, max_rounds=9, min_sample_us=1.0)

# A driver of its own: the arguments are the pickled call of `search`, and whether to
# die as soon as the first decision is in the journal.
DRIVER = """
import os, pickle, sys
from pathlib import Path
from flytune.tuner import recall
from flytune.tuner.journal import Journal
from flytune.tuner.progress import Progress
from flytune.tuner.search import search
from flytune.tuner.work import farm_for

plan, tasks, options = pickle.loads(Path(sys.argv[1]).read_bytes())
if sys.argv[2] == "die":
    keep = recall.Recall.keep
    def keep_and_die(self, decision):
        keep(self, decision)
        os.kill(os.getpid(), 9)
    recall.Recall.keep = keep_and_die
with Journal(plan.work / "journal.jsonl") as journal:
    with farm_for(plan, options) as farm:
        decisions = search(
            plan, tasks, options, journal, (), lambda: farm, Progress()
        )
"""


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.here(threads=2)


def plan_in(folder: Path, target: Target) -> Plan:
    model = find_model("Qwen3-4B")
    return Plan(
        model=model,
        shapes=(),
        program=ProgramSpec(json.loads(model.raw), "eager"),
        policy=cpu_policy("frozen", tokens=(17,), threads=2, attention="eager"),
        target=target,
        profile=None,
        needed_bytes=0,
        work=folder,
        out=folder / "bundle",
    )


def options_in(folder: Path, **changes: Any) -> BuildOptions:
    options = BuildOptions(
        model="Qwen3-4B",
        tokens=(17,),
        attention="eager",
        policy="frozen",
        threads=2,
        out=folder / "bundle",
        work=folder,
        ray=None,
        from_bundle=None,
        bake_passes=2,
        timing=QUICK,
    )
    return replace(options, **changes)


def no_workers() -> Farm:
    """Nothing can be timed anew."""
    raise ZeroDivisionError


def searched(
    folder: Path,
    target: Target,
    tasks: Sequence[TuneTask],
    older: Sequence[TuningRecord] = (),
) -> tuple[Decision, ...]:
    plan, options = plan_in(folder, target), options_in(folder)
    with Journal(folder / "journal.jsonl") as journal, ExitStack() as ray:
        start = functools.cache(lambda: ray.enter_context(farm_for(plan, options)))
        given = (plan, tasks, options, journal, older, start, Progress())
        return search(*given).decisions


def decided(made: TuneTask) -> Decision:
    names = [c.choice_hash for c in made.offered.candidates]
    builds = [BuildResult(name, Status.OK) for name in names]
    results = [RunResult(name, Status.OK, samples_us=(1.0,) * 9) for name in names]
    return decide(made, builds, results)


def drive(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", DRIVER, str(folder / "call"), how]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )


def journalled(folder: Path) -> list[str]:
    """Return the list of each journal row, in order."""
    with Journal(folder / "journal.jsonl") as journal:
        return [entry["list"] for entry in journal.entries("record")]


@pytest.mark.slow
def test_a_killed_driver_goes_on_where_it_stopped(
    tmp_path: Path, target: Target, real_tasks: tuple[TuneTask, ...]
) -> None:
    tasks = [t for t in real_tasks if len(t.offered.candidates) == 2][:2]
    call = (plan_in(tmp_path, target), tasks, options_in(tmp_path))
    (tmp_path / "call").write_bytes(pickle.dumps(call))

    killed = drive(tmp_path, "die")
    assert killed.returncode == -9
    assert "tune: 2 lists to time, 0 known" in killed.stderr
    assert "build: 2 of 2" in killed.stderr
    first = journalled(tmp_path)
    assert len(first) == 2
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("built.json")}
    assert len(kept) == 2

    again = drive(tmp_path, "live")
    assert (again.returncode, again.stdout) == (0, "")
    assert "tune: 1 lists to time, 1 known from earlier work" in again.stderr
    assert "build: " not in again.stderr
    assert "time: 1 of 1" in again.stderr
    lists = journalled(tmp_path)
    assert lists[:2] == first
    assert len(lists) == 4
    assert len(set(lists)) == 2
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("built.json")} == kept

    # Nothing is left to do, and what is decided is the same to the byte.
    before = (tmp_path / "journal.jsonl").read_bytes()
    one, other = (searched(tmp_path, target, tasks) for _ in range(2))
    assert (tmp_path / "journal.jsonl").read_bytes() == before
    for name, decisions in (("one", one), ("other", other)):
        records = [r for decision in decisions for r in decision.records]
        assert {r.status for r in records} == {Status.OK}
        write_records(records, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert timings(one) == timings(other)


def test_what_misbehaves_is_a_row_and_the_rest_is_decided(
    tmp_path: Path,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(quiet, "_busy_cores", lambda: (1.0, 1.0))
    monkeypatch.setattr(quiet, "_PATIENCE_S", 0.0)
    bad = [
        candidate("aborts in build", in_build="abort"),
        candidate("raises in build", in_build="raise"),
        candidate("aborts in run", in_run="abort"),
        candidate("is wrong", in_run="tile"),
    ]
    tasks = [
        task([*bad, library()], k=2560),
        task([library("alone")], m=32),
        task([library("two"), candidate("good")], m=64),
    ]
    first, alone, second = searched(tmp_path, target, tasks)
    assert {r.choice_hash: r.status for r in first.records} == {
        "aborts in build": Status.FAULT,
        "raises in build": Status.COMPILE_ERROR,
        "aborts in run": Status.FAULT,
        "is wrong": Status.WRONG_RESULT,
        "library": Status.OK,
    }
    assert first.winner.choice_hash == "library"
    assert not alone.was_choice
    assert [r.status for r in second.records] == [Status.OK, Status.OK]
    for row in second.records:
        assert None not in (row.canary_us, row.batch_s, row.at_s)
    (canary,) = {row.canary_us for row in second.records}
    assert canary is not None
    # 2 * 512 ** 3 operations: between a tenth and ten thousand GFLOP/s.
    assert 27 < canary < 2.7e6
    with Journal(tmp_path / "journal.jsonl") as journal:
        ceilings = journal.entries("ceilings")[-1]["row"]
    assert ceilings["copy_gb_s"] > 0.1
    assert ceilings["gemm_tflops"].keys() == {first.task.shape.a_dtype}
    # The same to both that were timed, at different moments.
    assert {r.at_s for r in first.records} != {r.at_s for r in second.records}
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.count("time: warning: other processes use 2.0 of 2 cores") == 1
    assert "tune: 2 lists to time, 0 known from earlier work, 1 with one" in told.err


def test_a_list_without_survivors_ends_the_build_and_keeps_the_others(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "_busy_cores", lambda: (0.0, 0.0))
    good = task([library("two"), candidate("good")], m=64)
    lost = task([library(in_run="nan"), candidate("x", in_run="raise")])
    with pytest.raises(FlytuneError, match="no candidate survived for mm"):
        searched(tmp_path, target, [good, lost])
    assert len(journalled(tmp_path)) == 2


def test_records_of_an_older_bundle_need_no_ray(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = task([library(), candidate("x")])
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.add_all([("record", {"list": "x", "row": {"op": "from later on"}})])
    decision = decided(made)
    monkeypatch.setattr(work, "Farm", None)
    assert searched(tmp_path, target, [made], decision.records) == (decision,)
    assert len(journalled(tmp_path)) == 1


@pytest.mark.parametrize("by", ["exclude", "quarantine"])
def test_what_may_not_be_tried_has_no_time_in_a_decision(
    tmp_path: Path, target: Target, by: str
) -> None:
    made = task([library(), candidate("x")])
    decision, plan = decided(made), plan_in(tmp_path, target)

    def run(refused: str) -> tuple[Decision, ...]:
        exclude = frozenset([refused] if by == "exclude" else [])
        if by == "quarantine":
            device = device_of(plan).name
            result = RunResult(refused, Status.FAULT, "it died", cost_the_process=True)
            Quarantine(tmp_path / NAME, device).add(made, [result])
        options = options_in(tmp_path, exclude=exclude)
        with Journal(tmp_path / "journal.jsonl") as journal:
            older = decision.records
            given = (plan, [made], options, journal, older, no_workers, Progress())
            return search(*given).decisions

    assert run("another") == (decision,)
    with pytest.raises(ZeroDivisionError):
        run("x")


@pytest.mark.parametrize("reason", [EXCLUDED, "quarantined in /x: it died"])
def test_what_might_not_be_tried_once_is_tried_when_it_may(
    tmp_path: Path, target: Target, reason: str
) -> None:
    made = task([library(), candidate("x")])
    first, second = decided(made).records
    old = (
        replace(first, winner=True),
        replace(second, winner=False, status=Status.FAULT, reason=reason),
    )
    with Journal(tmp_path / "journal.jsonl") as journal:
        plan = plan_in(tmp_path, target)
        options = options_in(tmp_path, exclude=frozenset(["x"]))
        given = ([made], options, journal, old, no_workers, Progress())
        (decision,) = search(plan, *given).decisions
        assert decision.records == old
        given = ([made], options_in(tmp_path), journal, old, no_workers, Progress())
        with pytest.raises(ZeroDivisionError):
            search(plan, *given)
