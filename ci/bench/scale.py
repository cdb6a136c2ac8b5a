"""How far one driver goes: the real scheduler on simulated clusters.

`python ci/bench/scale.py [--candidates 200000]`

What hands out batches, takes results, finds complete lists, gives them to devices and
journals decisions is the code of a build; the workers and the devices are simulated. A
compilation and a list take what they took on an H200
(tests/data/recorded/h200_seconds.json), drawn with a seed. Ray's calls cost the driver
what they are measured to cost on this machine, just before. The clock is virtual, and
what the driver takes, as measured, is added to it.
"""

import json
import random
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
from made_up import made_up_task
from ray_calls import RayCalls, measure_calls
from results import RESULTS, ROOT, write_result
from simulated import Clock, SimulatedBuilders, SimulatedDevices

from flytune.caches.target import Target
from flytune.shapes.gemm import GemmShape
from flytune.tuner.batches import build_batches
from flytune.tuner.candidate import (
    TRITON,
    Candidate,
    TuneTask,
)
from flytune.tuner.decision import decide
from flytune.tuner.journal import JOURNAL, Journal
from flytune.tuner.overlap import timed_while_building
from flytune.tuner.recall import Recall

SECONDS = ROOT / "tests" / "data" / "recorded" / "h200_seconds.json"
CLUSTERS = (
    *((1, 8), (1, 16), (2, 16), (4, 32), (8, 64), (8, 128), (32, 256)),
    *((128, 1024), (256, 2048), (512, 4096)),
)
"""Devices and cores."""
LIST = 20
"""Candidates of a list, as Inductor's default lists on an H200 have them."""
Row = dict[str, Any]


class Durations(NamedTuple):
    """Seconds by candidate and by list; the same for a seed on every cluster."""

    compile_s: dict[str, float]
    list_s: dict[int, float]
    """By the list's M."""


@click.command()
@click.option("--candidates", default=200_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--results", default=RESULTS, show_default=True, type=click.Path(path_type=Path)
)
def main(candidates: int, seed: int, results: Path) -> None:
    """Simulate each cluster, print a line of each, and write the result file."""
    calls = measure_calls()
    print(
        f"Ray here: {1e3 * calls.submit_s:.3f} ms to hand out a batch, "
        f"{1e3 * calls.told_s:.3f} ms to take it back"
    )
    tasks = _tasks(candidates)
    durations = _durations(tasks, seed)
    rows = []
    for devices, slots in CLUSTERS:
        row = _simulated(tasks, durations, devices, slots, calls)
        rows.append(row)
        print(
            f"{devices:4} devices {slots:5} cores: {row['took_s']:9.1f} s of "
            f"{row['ideal_s']:9.1f} s at least: {row['efficiency_pct']:5.1f} %; driver "
            f"{row['driver_ms']:.4f} ms a candidate, with Ray's calls "
            f"{row['driver_and_ray_ms']:.4f} ms, with decisions and journal "
            f"{row['all_ms']:.4f} ms; {row['batches']} batches"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures = {
        "candidates": len(tasks) * LIST,
        "lists": len(tasks),
        "mean_compile_s": _mean(durations.compile_s.values()),
        "mean_list_s": _mean(durations.list_s.values()),
        "ray_submit_ms": round(1e3 * calls.submit_s, 4),
        "ray_told_ms": round(1e3 * calls.told_s, 4),
        "driver_gib": round(peak, 3),
        "driver_ms_per_candidate": max(row["driver_ms"] for row in rows),
        **{
            f"efficiency_{devices}": _of(rows, devices)["efficiency_pct"]
            for devices in (8, 512)
        },
    }
    print(f"the driver's memory at most: {peak:.2f} GiB")
    slug = Target.here(threads=1).slug
    print(f"wrote {write_result('scale', slug, figures, rows, results)}")


def _of(rows: Sequence[Row], devices: int) -> Row:
    """Return the last row of so many devices: that with the most cores."""
    return [row for row in rows if row["devices"] == devices][-1]


def _mean(values: Any) -> float:
    values = list(values)
    return round(sum(values) / len(values), 4)


def _tasks(candidates: int) -> list[TuneTask]:
    """Return lists of as many candidates in all."""
    return [_task(number) for number in range(candidates // LIST)]


def _task(number: int) -> TuneTask:
    shape = GemmShape(op="mm", m=number + 1, n=4096, k=4096)
    names = (f"{number} {at}" for at in range(LIST))
    some = (Candidate(TRITON, "mm", "{}", name, b"") for name in names)
    return made_up_task(number, shape, some)


def _durations(tasks: Sequence[TuneTask], seed: int) -> Durations:
    recorded = json.loads(SECONDS.read_text())
    dice = random.Random(seed)
    return Durations(
        {
            c.choice_hash: dice.choice(recorded["compile_s"])
            for task in tasks
            for c in task.offered.candidates
        },
        {task.shape.m: dice.choice(recorded["list_s"]) for task in tasks},
    )


def _simulated(
    tasks: Sequence[TuneTask],
    durations: Durations,
    devices: int,
    slots: int,
    calls: RayCalls,
) -> Row:
    """Build and time everything on one cluster."""
    clock = Clock()
    builders = SimulatedBuilders(
        clock,
        slots,
        lambda candidate: durations.compile_s[candidate.choice_hash],
        submit_s=calls.submit_s,
        tell_s=calls.told_s,
    )
    timers = SimulatedDevices(
        clock, devices, lambda task: durations.list_s[task.shape.m]
    )
    candidates = [c for task in tasks for c in task.offered.candidates]
    building = build_batches(candidates, builders)
    decided_s = 0.0
    number = 0
    with (
        tempfile.TemporaryDirectory(prefix="flytune-bench-") as folder,
        Journal(Path(folder) / JOURNAL) as journal,
    ):
        recall = Recall(journal, ())
        for timed in timed_while_building(tasks, {}, building, timers):
            start = time.thread_time()
            recall.keep(decide(*timed))
            decided_s += time.thread_time() - start
            number += 1
    clock.driver_stops()
    assert number == len(tasks)
    ray_s = builders.batches * calls.submit_s + builders.told * calls.told_s
    ideal_s = max(
        sum(durations.compile_s.values()) / slots,
        sum(durations.list_s.values()) / devices,
    )
    each = 1e3 / len(candidates)
    return {
        "devices": devices,
        "cores": slots,
        "took_s": round(timers.ended, 3),
        "ideal_s": round(ideal_s, 3),
        "efficiency_pct": round(100 * ideal_s / timers.ended, 2),
        "devices_busy_pct": round(100 * timers.busy_s / devices / timers.ended, 2),
        "driver_ms": round((clock.driver_s - ray_s - decided_s) * each, 5),
        "driver_and_ray_ms": round((clock.driver_s - decided_s) * each, 5),
        "all_ms": round(clock.driver_s * each, 5),
        "batches": builders.batches,
    }


if __name__ == "__main__":
    main()
