"""A build's search as a driver of its own, with candidates that only sleep.

`python ci/bench/chaos_driver.py ADDRESS WORK LISTS SECONDS`

A compilation sleeps and leaves a file; timing gives each candidate the time that its
name says. Both note what they do in WORK, so that one sees what was done twice. The
rest is a build's own: batches, workers, devices, journal, kernels on disk, decisions.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from made_up import made_up_task
from ray import cloudpickle

from flytune.caches.columns import Status
from flytune.caches.device_profile import find_profile
from flytune.caches.policy import cpu_policy
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape
from flytune.shapes.registry import find_model
from flytune.tuner.candidate import (
    CPP,
    BuildResult,
    Candidate,
    RunResult,
    TuneTask,
)
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.journal import JOURNAL, Journal
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.runner import Device
from flytune.tuner.search import search
from flytune.tuner.timing import TimingPlan
from flytune.tuner.workers import Farm

PROFILE = "h200"
LIST = 20
"""Candidates of a list."""
COMPILED, TIMED, RECORDS = "compiled.txt", "timed.txt", "records.json"
"""Files of WORK: a line each time that something is done; and what came of it all."""
COMPARED = ("choice_hash", "status", "reason", "median_us", "kernel_digest", "winner")
"""Columns of a record that faults may not change."""
# So many measurements take long: a device that answers slowly.
_SLOW_ONE_IN, _SLOW_S = 50, 2.0
_SAMPLES = 9


def note(path: Path, words: str) -> None:
    """Append a line, whole."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{words}\n".encode())
    finally:
        os.close(file)


def number_of(name: str) -> int:
    """Return a number that a name always gives."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


@dataclass
class Sleeps:
    """Inductor's request of a candidate, as far as a builder asks it."""

    name: str
    seconds: float
    notes: Path

    def precompile(self) -> None:
        """Take a while, and leave a kernel."""
        note(self.notes, self.name)
        time.sleep(self.seconds)
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "kernels"
        folder.mkdir(exist_ok=True)
        (folder / f"{self.name}.bin").write_bytes(self.name.encode())


class Replays:
    """A runner whose device is a name's number."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._list = ""

    def begin(self, task: TuneTask) -> None:
        """Take a list."""
        self._list = task.shape.module

    def check(self, build: BuildResult) -> RunResult:
        """Refuse what was not built, or is another kernel."""
        name = build.choice_hash
        if build.status is not Status.OK:
            return RunResult(name, build.status, build.reason)
        if list(build.files.values()) != [name.encode()]:
            return RunResult(name, Status.WRONG_RESULT, f"holds {list(build.files)}")
        return RunResult(name, Status.OK, rel_error=0.0)

    def measure(self, names: Sequence[str], plan: TimingPlan) -> tuple[RunResult, ...]:
        """Say the names' numbers."""
        note(self._notes, self._list)
        slow = number_of(self._list) % _SLOW_ONE_IN == 0
        time.sleep(_SLOW_S if slow else 0.01 * plan.warm_up)
        return tuple(_timed(name) for name in names)

    def end(self) -> None:
        """There is nothing to forget."""


def _timed(name: str) -> RunResult:
    us = 10.0 + number_of(name) % 1000
    return RunResult(name, Status.OK, samples_us=(us,) * _SAMPLES, rel_error=0.0)


def tasks_of(lists: int, seconds: float, notes: Path) -> list[TuneTask]:
    """Return so many lists."""
    return [_task(number, seconds, notes) for number in range(lists)]


def _task(number: int, seconds: float, notes: Path) -> TuneTask:
    shape = GemmShape(op="mm", m=1, n=16, k=16 * (number + 1), module=str(number))
    names = (f"{number}-{at}" for at in range(LIST))
    some = (
        Candidate(
            CPP,
            "fake",
            json.dumps({"name": name}),
            name,
            cloudpickle.dumps(Sleeps(name, seconds, notes)),
        )
        for name in names
    )
    return made_up_task(number, shape, some)


def plan_in(work: Path) -> Plan:
    """Return the plan of a build for a device that is not here."""
    profile = find_profile(PROFILE)
    return Plan(
        model=find_model("Qwen3-4B"),
        shapes=(),
        program=None,
        policy=cpu_policy("frozen", tokens=(1,), threads=1, attention="eager"),
        target=Target.here(threads=1),
        profile=profile,
        needed_bytes=0,
        work=work,
        out=work / "bundle",
    )


def drive(address: str, work: Path, lists: int, seconds: float) -> None:
    """Search, and write what was decided.

    Raises:
        FlytuneError: the cluster fails.
    """
    work.mkdir(parents=True, exist_ok=True)
    tasks = tasks_of(lists, seconds, work / COMPILED)
    plan = plan_in(work)
    options = BuildOptions(
        model="Qwen3-4B",
        tokens=(1,),
        attention="eager",
        policy="frozen",
        threads=1,
        out=plan.out,
        work=work,
        ray=address,
        from_bundle=None,
        bake_passes=2,
    )

    def make_runner(device: Device) -> Replays:
        del device
        return Replays(work / TIMED)

    deadlines = Deadlines(build_s=60.0, begin_s=60.0, absent_s=300.0)
    farm = Farm(
        *(address, {}, deadlines, plan.profile),
        make_runner=make_runner,
        tell=lambda: plan.profile,
    )
    with Journal(work / JOURNAL) as journal, farm:
        given = (plan, tasks, options, journal, (), lambda: farm, Progress())
        decisions = search(*given).decisions
    rows = [
        [getattr(record, name) for name in COMPARED]
        for decision in decisions
        for record in decision.records
    ]
    (work / RECORDS).write_text(json.dumps(rows))


if __name__ == "__main__":
    try:
        drive(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    except FlytuneError as error:
        sys.exit(f"error: {error.line}\nhint: {error.hint}")
