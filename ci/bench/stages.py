"""`flytune build` itself, in a process of its own, with a clock on each stage.

The command runs as a user's does; around it the stages' names in `flytune.tuner.build`
are replaced by clocked ones. It may end after the search, which is what tuning is, and
may be held to some of its lists.
"""

import pickle
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from processes import answer, fresh

from flytune.caches.compat import wrap
from flytune.caches.records import read_records
from flytune.shapes.plan import plan_shapes
from flytune.shapes.registry import find_model
from flytune.tuner.candidate import TuneTask
from flytune.tuner.decision import Decision
from flytune.tuner.publish import RECORDS_NAME

BUILD = "flytune.tuner.build"
STAGES = ("make_plan", "join", "search", "bake", "publish")
TASKS = "tasks.pickle"
LISTS = "lists.pickle"
BUILT = "built"
Shape = tuple[int, int, int]
"""m, n, k."""


class Searched(Exception):
    """The search is done, and nothing more was asked for."""


def run_stages(
    arguments: Sequence[str],
    work: Path,
    *,
    only: Iterable[Shape] | None = None,
    bake: Path | None = None,
    like: Path | None = None,
) -> Any:
    """Build in a fresh process; return its seconds by stage, and its decisions.

    Args:
        arguments: Of `flytune build`, but --work and --out.
        work: Directory of the build, which goes on where it is not empty.
        only: Tune the first list of each of these shapes alone.
        bake: Directory of the bundle that is made and verified then; None ends the
            build after its search.
        like: What another build of the same returned as `work`: its lists and compiled
            candidates are taken, and only the tuning is done anew.

    Raises:
        FlytuneError: the build failed.
    """
    request = {
        "arguments": [*arguments, "--work", str(work)],
        "out": str((bake or work) / "bundle"),
        "only": None if only is None else list(only),
        "bake": bake is not None,
        "like": None if like is None else str(like),
    }
    return fresh("stages", request, what="the build")


def linears(model: str, tokens: int) -> tuple[Shape, ...]:
    """Return the distinct shapes of a model's linears at one token count."""
    shapes = plan_shapes(
        find_model(model), tp=1, engine="transformers", tokens=(tokens,), trace=False
    )
    return tuple(dict.fromkeys((s.m, s.n, s.k) for s in shapes if s.op != "bmm"))


def firsts(tasks: Iterable[TuneTask], shapes: Iterable[Shape]) -> dict[Shape, TuneTask]:
    """Return the first list with a choice of each shape that has one."""
    wanted = set(shapes)
    found: dict[Shape, TuneTask] = {}
    for task in tasks:
        shape = (task.shape.m, task.shape.n, task.shape.k)
        if task.shape.op == "bmm" or len(task.offered.candidates) < 2:
            continue
        if shape in wanted:
            found.setdefault(shape, task)
    return found


class Clock:
    """Seconds of each stage by its name, in the order that they ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def stage(self, name: str, path: str) -> None:
        """Clock the calls of one function of the pipeline."""

        def clocked(inner: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                self._lap("before_" + name)
                try:
                    return inner(*args, **kwargs)
                finally:
                    self._lap(name)

            return call

        wrap(BUILD, path, clocked)

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(now - self._last, 3)
        self._last = now


def _build(request: dict[str, Any]) -> dict[str, Any]:
    """Answer `run_stages`."""
    result: dict[str, Any] = {}
    clock = Clock()
    _take(request["like"])
    hold(request["only"])
    _keep(result)
    _clock_start(result)
    for name in STAGES:
        clock.stage(name, name)
    if not request["bake"]:
        _end_after_search()
    from flytune.tuner.cli import main

    arguments = ["build", *request["arguments"], "--out", request["out"]]
    code = 0
    try:
        code = main(arguments, standalone_mode=False) or 0
    except Searched:
        pass
    else:
        result["verified"] = code == 0
        _mark_baked(Path(request["out"]), result["lists"])
    seconds = clock.seconds
    # What lies between the plan and the join is the program being lowered.
    seconds["enumerate"] = seconds.pop("before_join")
    return {"seconds": seconds, **result}


def hold(only: list[list[int]] | None) -> None:
    """Hold the build to the first list of each wanted shape."""
    if only is None:
        return
    wanted = [(m, n, k) for m, n, k in only]

    def held(inner: Callable[..., Any]) -> Callable[..., Any]:
        def join(*args: Any) -> Any:
            coverage = inner(*args)
            return replace(
                coverage, tasks=tuple(firsts(coverage.tasks, wanted).values())
            )

        return join

    wrap(BUILD, "join", held)


def _take(like: str | None) -> None:
    """Take another build's lists and compiled candidates, which are no tuning."""
    if like is None:
        return
    other = Path(like)

    def taken(inner: Callable[..., Any]) -> Callable[..., Any]:
        def make_plan(*args: Any) -> Any:
            plan = inner(*args)
            plan.work.mkdir(parents=True)
            # Absent where a library's kernels are all there is.
            if (other / BUILT).is_dir():
                shutil.copytree(other / BUILT, plan.work / BUILT)
            shutil.copy(other / LISTS, plan.work / LISTS)
            return plan

        return make_plan

    wrap(BUILD, "make_plan", taken)


def _keep(result: dict[str, Any]) -> None:
    """Keep what the search was given and what it decided."""

    def kept(inner: Callable[..., Any]) -> Callable[..., Any]:
        def search(
            plan: Any, tasks: Sequence[TuneTask], *rest: Any, **more: Any
        ) -> Any:
            from flytune.tuner.timed_device import device_of

            (plan.work / TASKS).write_bytes(pickle.dumps(tuple(tasks)))
            found = inner(plan, tasks, *rest, **more)
            result["work"] = str(plan.work)
            result["device"] = asdict(device_of(plan))
            result["policy"] = plan.policy.to_json()
            result["lists"] = [_row(d) for d in found.decisions if d.was_choice]
            return found

        return search

    wrap(BUILD, "search", kept)


def _clock_start(result: dict[str, Any]) -> None:
    """Clock how long Ray takes to start, which is part of the listing."""
    result["ray_s"] = 0.0

    def clocked(inner: Callable[..., Any]) -> Callable[..., Any]:
        def enter(*args: Any) -> Any:
            start = time.perf_counter()
            entered = inner(*args)
            result["ray_s"] = round(time.perf_counter() - start, 3)
            return entered

        return enter

    wrap("flytune.tuner.workers", "Farm.__enter__", clocked)


def _end_after_search() -> None:
    def ended(_: Callable[..., Any]) -> Callable[..., Any]:
        def bake(*_: Any) -> Any:
            raise Searched

        return bake

    wrap(BUILD, "bake", ended)


def _mark_baked(bundle: Path, lists: Sequence[dict[str, Any]]) -> None:
    """Say of each candidate whether the baked graphs hold it."""
    baked = {
        (r.inductor_op, r.inputs_key, r.precision, r.choice_hash)
        for r in read_records(bundle / RECORDS_NAME)
        if r.baked
    }
    for row in lists:
        for candidate in row["candidates"]:
            candidate["baked"] = (*row["key"], candidate["hash"]) in baked


def _row(decision: Decision) -> dict[str, Any]:
    offered = decision.task.offered
    return {
        "shape": [decision.task.shape.m, decision.task.shape.n, decision.task.shape.k],
        "key": [offered.op, offered.inputs_key, offered.precision],
        "module": decision.task.modules[0],
        "candidates": [
            {
                "hash": r.choice_hash,
                "backend": r.backend,
                "template": r.template,
                "config": r.config,
                "status": str(r.status),
                "us": r.median_us,
                "winner": r.winner,
            }
            for r in decision.records
        ],
    }


if __name__ == "__main__":
    answer(_build)
