"""A much longer race of a few candidates than a build takes, by the build's own runner.

It reads what a build left: its lists, and its compiled candidates.
"""

import pickle
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from processes import answer, fresh
from stages import BUILT, TASKS, Shape, firsts

from flytune.caches.child import clean_environment
from flytune.caches.columns import Status
from flytune.caches.policy import ServingPolicy
from flytune.shapes.errors import FlytuneError
from flytune.tuner.built_kernels import BuiltKernels
from flytune.tuner.candidate import BuildResult, TuneTask
from flytune.tuner.runner import Device, LocalRunner
from flytune.tuner.timing import TimingPlan

_MAX_SECONDS = 300.0


def race(
    built: Mapping[str, Any], entered: Mapping[Shape, Sequence[str]], rounds: int
) -> dict[Shape, dict[str, Any]]:
    """Time candidates of each shape against each other, all of them to the end.

    Args:
        built: What `run_stages` returned of the build.
        entered: The hashes of the candidates that race, by shape.
        rounds: Samples a candidate, at least 9.

    Returns:
        By shape its `samples` in microseconds, by hash, rounds aligned; and whether the
        device was `disturbed` meanwhile.

    Raises:
        FlytuneError: a candidate that ran in the build does not now.
    """
    request = {
        "work": built["work"],
        "device": built["device"],
        "entered": [[shape, list(names)] for shape, names in entered.items()],
        "rounds": rounds,
    }
    policy = ServingPolicy.from_json(built["policy"])
    with tempfile.TemporaryDirectory(prefix="flytune-race-") as directory:
        env = clean_environment(policy, Path(directory))
        rows = fresh("race", request, env, what="the race")
    return {(m, n, k): raced for (m, n, k), raced in rows}


def long_plan(rounds: int) -> TimingPlan:
    """Return a plan in which nobody leaves early and nothing is looked at midway."""
    return TimingPlan(
        rough_rounds=rounds + 1,
        rounds=rounds,
        max_rounds=rounds,
        max_seconds=_MAX_SECONDS,
    )


def _race(request: dict[str, Any]) -> list[Any]:
    """Answer `race`."""
    work = Path(request["work"])
    tasks = pickle.loads((work / TASKS).read_bytes())
    store = BuiltKernels(work / BUILT)
    runner = _runner(Device(**request["device"]))
    rows = []
    for (m, n, k), names in request["entered"]:
        task = firsts(tasks, [(m, n, k)])[m, n, k]
        runner.begin(task)
        for name in names:
            checked = runner.check(_built(task, name, store))
            if checked.status is not Status.OK:
                raise FlytuneError(f"fails in the race: {name}: {checked.reason}")
        timed = runner.measure(names, long_plan(request["rounds"]))
        samples = {r.choice_hash: r.samples_us for r in timed}
        disturbed = any(r.disturbed for r in timed)
        rows.append([[m, n, k], {"samples": samples, "disturbed": disturbed}])
    return rows


def _built(task: TuneTask, name: str, store: BuiltKernels) -> BuildResult:
    """Return a candidate as the build made it; a library's needs no making."""
    backend = next(c.backend for c in task.offered.candidates if c.choice_hash == name)
    if backend == "aten":
        return BuildResult(name, Status.OK)
    found = store.find(name)
    if found is None:
        raise FlytuneError(f"the build's kernel is gone: {name}")
    return found


def _runner(device: Device) -> LocalRunner:
    if device.kind == "cpu":
        from flytune.tuner.cpu_runner import CpuRunner

        return CpuRunner(device)
    from flytune.tuner.accelerator_runner import AcceleratorRunner

    return AcceleratorRunner(device)


if __name__ == "__main__":
    answer(_race)
