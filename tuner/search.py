"""Stages 3 to 5: build the candidates, time them, and choose.

What is finished is on disk before the next begins; what is there is not done again.
"""

import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence

from flytune.caches.columns import Status
from flytune.caches.records import TuningRecord
from flytune.tuner.candidate import ATEN, BuildResult, TuneTask
from flytune.tuner.decision import Decision, decide, lone
from flytune.tuner.journal import Journal
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan, free_bytes
from flytune.tuner.progress import Progress
from flytune.tuner.recall import BuiltKernels, Recall
from flytune.tuner.runner import Device
from flytune.tuner.workers import Farm

_DEFAULT_CACHE_BYTES = 64 * 2**20
# Cores that may be missing before a warning: an idle host's own work takes as much.
_SPARE_CORES = 0.5
_WATCH_S = 0.5
_PATIENCE_S = 15.0


def search(
    plan: Plan,
    tasks: Sequence[TuneTask],
    options: BuildOptions,
    journal: Journal,
    older: Iterable[TuningRecord],
    progress: Progress,
) -> tuple[Decision, ...]:
    """Return a decision for every task, in their order.

    Args:
        older: Records of an earlier bundle for the same target, taken where they are
            of the very same list.

    Raises:
        FlytuneError: a list has no candidate that survives, or Ray cannot be had.
    """
    recall = Recall(journal, older)
    alone = [t for t in tasks if len(t.offered.candidates) == 1]
    choices = [t for t in tasks if len(t.offered.candidates) > 1]
    decided = {task.offered.key: lone(task) for task in alone}
    for task in choices:
        if (decision := recall.decision(task)) is not None:
            decided[task.offered.key] = decision
    waiting = [task for task in choices if task.offered.key not in decided]
    progress.say(
        f"tune: {len(waiting)} lists to time, {len(choices) - len(waiting)} known "
        f"from earlier work, {len(alone)} with one candidate and no choice"
    )
    if recall.unreadable:
        progress.say(f"tune: passed over {recall.unreadable} unreadable journal rows")
    if waiting:
        with Farm(options.ray, plan.policy.env, options.deadlines) as farm:
            built = _build(farm, waiting, BuiltKernels(plan.work / "built"), progress)
            runner = farm.runner(cpu_device(plan), options.threads)
            runner.start()
            if warning := _until_quiet(options.threads):
                progress.say(warning)
            with progress.stage("time", len(waiting)) as stage:
                for task in waiting:
                    builds = [built[c.choice_hash] for c in task.offered.candidates]
                    results = runner.run(task, builds, options.timing)
                    decision = decide(task, builds, results)
                    recall.keep(decision)
                    decided[task.offered.key] = decision
                    stage.advance(f"{task.shape}: {decision.winner.backend}")
    return tuple(decided[task.offered.key] for task in tasks)


def _build(
    farm: Farm, tasks: Sequence[TuneTask], store: BuiltKernels, progress: Progress
) -> Mapping[str, BuildResult]:
    """Build each distinct candidate once, but what is stored."""
    candidates = {c.choice_hash: c for t in tasks for c in t.offered.candidates}
    results: dict[str, BuildResult] = {}
    for name, candidate in candidates.items():
        if candidate.backend == ATEN:
            results[name] = BuildResult(name, Status.OK)
        elif (stored := store.find(name)) is not None:
            results[name] = stored
    waiting = [c for name, c in candidates.items() if name not in results]
    with progress.stage("build", len(waiting)) as stage:
        for result in farm.build_all(waiting):
            results[result.choice_hash] = result
            store.keep(result)
            stage.advance(result.reason)
    return results


def cpu_device(plan: Plan) -> Device:
    """Return this host's CPU as the runner must know it."""
    hardware = plan.target.hardware
    cache = hardware.get("l3_bytes") or hardware.get("l2_bytes")
    return Device(
        name=str(hardware.get("product") or platform.machine()),
        cache_bytes=cache if isinstance(cache, int) else _DEFAULT_CACHE_BYTES,
        # The operands, and packing them, take memory too.
        rotation_bytes=free_bytes() // 2,
    )


def crowded(busy: Sequence[float], threads: int) -> str:
    """Return a warning when others leave too few cores free for `threads`, or nothing.

    An OpenMP kernel ends with its slowest thread: one core taken makes times hundreds
    of times too long, and of what they are made the choice is.

    Args:
        busy: The share of each core that others use, 0 to 1.
    """
    taken = sum(busy)
    if len(busy) - taken >= threads - _SPARE_CORES:
        return ""
    return (
        f"time: warning: other processes use {taken:.1f} of {len(busy)} cores, and "
        f"{threads} threads are timed: wait until they end, or times mean little"
    )


def _until_quiet(threads: int) -> str:
    """Wait for the cores that timing needs; return a warning if others keep them.

    What Ray and the builders still do when the last build has ended passes by itself.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while warning := crowded(_busy_cores(), threads):
        if time.monotonic() > deadline:
            return warning
    return ""


def _busy_cores() -> tuple[float, ...]:
    """Return the share of each of this process's cores that is in use just now."""
    import psutil

    shares = psutil.cpu_percent(interval=_WATCH_S, percpu=True)
    own = os.sched_getaffinity(0)
    return tuple(share / 100 for core, share in enumerate(shares) if core in own)
