"""Compiling candidates for an AMD GPU without one: the workers against a plain loop.

`python ci/bench/compile.py [--lists FILE] [--target mi355x] [--each 40] [--cores 1,2]`

FILE is the `lists.pickle` of a build, or a pickled sequence of candidate lists; without
it those of Llama-3.3-70B at 64 tokens are listed, in bf16 and in mxfp4. Per
backend the same candidates are compiled into new directories, in turn by a loop in one
process and by a build's workers, which compile a kernel once that several candidates
share. Ray is held to the workers' cores. Both clocks include the start of the compiling
processes.
"""

import os
import pickle
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from compiled import list_model
from pieces import numbers
from processes import fresh, threads
from results import write_result

from flytune.caches.columns import Status
from flytune.caches.device_profile import DeviceProfile, find_profile
from flytune.caches.target import Target
from flytune.tuner.candidate import FLYDSL, TRITON, Candidate, CandidateList
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.flydsl_builder import kernel_of
from flytune.tuner.flydsl_keys import build_key
from flytune.tuner.workers import Farm

DEFAULT = ("--model", "Llama-3.3-70B", "--tokens", "64")
QUANTS = ("bf16", "mxfp4")


@click.command()
@click.option("--lists", "path", type=click.Path(path_type=Path))
@click.option("--target", default="mi355x", show_default=True)
@click.option("--each", type=int, help="At most so many candidates a backend.")
@click.option("--cores", default="1,2", show_default=True, callback=numbers)
def main(
    path: Path | None, target: str, each: int | None, cores: tuple[int, ...]
) -> None:
    """Measure both backends, print them with the ratio, and write the result file."""
    profile = find_profile(target)
    lists = listed(target) if path is None else read_lists(path)
    rows: list[dict[str, Any]] = []
    for backend in (FLYDSL, TRITON):
        candidates = sampled(candidates_of(lists, backend), each)
        if candidates:
            rows += measured(backend, candidates, profile, cores)
    figures = {
        "target": profile.product,
        **totals(rows),
        **{
            name: totals(rows, name)
            for name in dict.fromkeys(r["backend"] for r in rows)
        },
    }
    for name in (FLYDSL, TRITON):
        if name in figures:
            seconds = figures[name]["seconds"]
            for count in cores:
                ratio = seconds["loop"] / seconds[str(count)]
                print(f"{name}: {ratio:.2f} x a plain loop, on {count} cores")
    slug = Target.here(threads=threads()).slug
    print(f"wrote {write_result('compile', slug, figures, rows)}")


def listed(target: str) -> tuple[CandidateList, ...]:
    """Return the lists of a model in each type, as builds for the target make them."""
    lists: list[CandidateList] = []
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        for quant in QUANTS:
            arguments = [*DEFAULT, "--quant", quant, "--target", target]
            path = list_model([*arguments, "--compile-only"], Path(directory) / quant)
            lists += read_lists(path)
    return tuple(lists)


def read_lists(path: Path) -> tuple[CandidateList, ...]:
    """Return the lists of a build, or of a plain sequence of them."""
    stored = pickle.loads(path.read_bytes())
    return tuple(getattr(stored, "lists", stored))


def candidates_of(
    lists: Iterable[CandidateList], backend: str
) -> tuple[Candidate, ...]:
    """Return each candidate of a backend once, with its build key."""
    found = {}
    for one in lists:
        for candidate in one.candidates:
            if candidate.backend == backend:
                found[candidate.choice_hash] = keyed(candidate, one)
    return tuple(found.values())


def keyed(candidate: Candidate, offered: CandidateList) -> Candidate:
    """Return a candidate with its build key, also one pickled before there were any."""
    key = getattr(candidate, "build_key", "")
    if not key and candidate.backend == FLYDSL:
        key = build_key(kernel_of(candidate).source, offered.inputs)
    return Candidate(
        backend=candidate.backend,
        template=candidate.template,
        config=candidate.config,
        choice_hash=candidate.choice_hash,
        request=candidate.request,
        source=candidate.source,
        build_key=key,
    )


def sampled(candidates: Sequence[Candidate], most: int | None) -> Sequence[Candidate]:
    """Return so many of them, spread evenly."""
    if most is None or most >= len(candidates):
        return candidates
    return [candidates[n * len(candidates) // most] for n in range(most)]


def measured(
    backend: str,
    candidates: Sequence[Candidate],
    profile: DeviceProfile,
    cores: Iterable[int],
) -> list[dict[str, Any]]:
    """Compile the candidates in each way; return a row each.

    The loop runs before and after the workers: a host may be slower for a while.
    """
    common = {"backend": backend, "candidates": len(candidates)}
    loop = {**common, "way": "loop", "cores": 1}
    rows = [{**loop, **looped(candidates, profile)}]
    for count in cores:
        found = farmed(candidates, profile, count)
        rows.append({**common, "way": "workers", "cores": count, **found})
    rows.append({**loop, **looped(candidates, profile)})
    for row in rows:
        minutes = row["seconds"] * row["cores"] / 60
        row["per_core_min"] = round(row["candidates"] / minutes, 1)
        row["seconds"] = round(row["seconds"], 1)
        print(row, flush=True)
    return rows


def looped(candidates: Sequence[Candidate], profile: DeviceProfile) -> dict[str, Any]:
    """Compile in one process that does nothing else."""
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        path = Path(directory) / "candidates.pickle"
        path.write_bytes(pickle.dumps(tuple(candidates)))
        request = {"candidates": str(path), "profile": profile.to_json()}
        start = time.perf_counter()
        result = fresh("compile_loop", request, what="the loop")
        return {
            "seconds": time.perf_counter() - start,
            "failures": result["failures"],
            "compilations": len(candidates),
        }


def farmed(
    candidates: Sequence[Candidate], profile: DeviceProfile, cores: int
) -> dict[str, Any]:
    """Compile by the workers of a build, on so many cores."""
    by_key: dict[str, list[Candidate]] = {}
    for one in candidates:
        by_key.setdefault(one.build_key or one.choice_hash, []).append(one)
    shared = {group[0].choice_hash: len(group) for group in by_key.values()}
    firsts = [group[0] for group in by_key.values()]
    env = {"OMP_NUM_THREADS": "1"}
    failures: Counter[str] = Counter()
    with held_to(cores), Farm(None, env, Deadlines(), profile) as farm:
        start = time.perf_counter()
        for result in farm.build_all(firsts):
            if result is not None and result.status is not Status.OK:
                failures[f"{result.status}: {result.reason}"] += shared[
                    result.choice_hash
                ]
        seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "failures": sum(failures.values()),
        "compilations": len(firsts),
        "reasons": dict(failures.most_common(5)),
    }


@contextmanager
def held_to(cores: int) -> Iterator[None]:
    """Hold this process and what it starts to so many of its cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def totals(rows: Iterable[Mapping[str, Any]], backend: str = "") -> dict[str, Any]:
    """Return the figures of a backend, or of all: the workers' on the most cores."""
    of_it = [row for row in rows if backend in ("", row["backend"])]
    most = max(row["cores"] for row in of_it)
    workers = [r for r in of_it if r["way"] == "workers" and r["cores"] == most]
    loops = [row for row in of_it if row["way"] == "loop"]

    def rate(some: Sequence[Mapping[str, Any]]) -> float:
        minutes = sum(row["seconds"] * row["cores"] for row in some) / 60
        return round(sum(row["candidates"] for row in some) / minutes, 1)

    spent: dict[tuple[str, str], list[float]] = {}
    for row in of_it:
        name = "loop" if row["way"] == "loop" else str(row["cores"])
        spent.setdefault((name, row["backend"]), []).append(row["seconds"])
    seconds: Counter[str] = Counter()
    for (name, _), some in spent.items():
        seconds[name] += fmean(some)
    return {
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "candidates": sum(row["candidates"] for row in workers),
        "compilations": sum(row["compilations"] for row in workers),
        "failures": sum(row["failures"] for row in workers),
        "cores": most,
        "per_core_min": rate(workers),
        "loop_per_core_min": rate(loops),
    }


if __name__ == "__main__":
    main()
