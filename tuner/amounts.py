"""How much a build has to do: guessed from its plan, or counted in its lists."""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import ATEN, Candidate, TuneTask
from flytune.tuner.enumeration import LISTS
from flytune.tuner.estimate import Amounts
from flytune.tuner.heat import Heat
from flytune.tuner.options import BuildOptions
from flytune.tuner.past import Past
from flytune.tuner.plan import Plan
from flytune.tuner.recall import list_id
from flytune.tuner.smart.list_search import LEAST, SHARE, SHORT

_DEFAULT = 20
"""Candidates of a default list on an H200, as in ci/bench/results/throughput."""
_EXHAUSTIVE = ((16, 251), (32, 551), (64, 876))
_DRIVER = Path("/proc/driver/nvidia/gpus")
_LONGEST = 1401
"""Those of its exhaustive lists, by the most rows: smart/h200.parquet."""


def planned(
    plan: Plan,
    options: BuildOptions,
    past: Past,
    slots: int,
    heat: Heat,
    met: set[object] | None = None,
) -> Amounts:
    """Return what a build has to do, before it has listed anything.

    Where it was begun before its journal says what is left; else each planned GEMM is
    taken to have a list, as long as they are on an H200.

    Args:
        slots: Compilations at once.
        heat: Says what a call is expected to take.
        met: What other builds of a fleet are tuned for already, which is tuned once;
            this one's is added.
    """
    met = set() if met is None else met
    if past.listed and not options.fresh:
        return _left(plan, options, past, slots, met)
    shapes = {
        (*s.problem, s.a_dtype, s.b_dtype): s
        for s in plan.shapes
        if _has_choice(s, plan)
    }
    lengths = {shape: _length(shape.m, plan, options) for shape in shapes.values()}
    own = [shape for problem, shape in shapes.items() if problem not in met]
    met.update(shapes)
    tried = {shape: _tried(lengths[shape], options) for shape in own}
    number, lists = sum(tried.values()), len(tried)
    call_s = sum(some * heat.us(shape) for shape, some in tried.items()) / 1e6
    found = _amounts(plan, options, slots, lists, number - lists, number, call_s)
    return replace(found, offered=sum(lengths.values()))


def _left(
    plan: Plan, options: BuildOptions, past: Past, slots: int, met: set[object]
) -> Amounts:
    known = past.decided | met
    left = [some for name, some in past.listed.items() if name not in known]
    met.update(past.listed)
    compiled = sum(_tried(compiled, options) for compiled, _, _ in left)
    timed = sum(_tried(length, options) for _, length, _ in left)
    call_s = sum(_tried(length, options) * us for _, length, us in left) / 1e6
    return _amounts(plan, options, slots, len(left), compiled, timed, call_s)


def counted(
    plan: Plan,
    options: BuildOptions,
    waiting: Iterable[TuneTask],
    is_built: Callable[[Candidate], bool],
    capacity: tuple[int, int],
    heat: Heat,
) -> Amounts:
    """Return what is left to do of a build that has its lists.

    Args:
        waiting: The lists that are to be timed.
        is_built: Whether a candidate needs no compiling.
        capacity: Compilations at once, and GPUs.
        heat: Says what a call is expected to take.
    """
    tasks = list(waiting)
    compiled, timed, call_s = 0, 0, 0.0
    for task in tasks:
        compiled += _tried(len(to_compile(task, is_built)), options)
        tried = _tried(len(task.offered.candidates), options)
        timed += tried
        call_s += tried * heat.us(task.shape) / 1e6
    slots, devices = capacity
    found = _amounts(plan, options, slots, len(tasks), compiled, timed, call_s)
    return found if plan.profile is None else replace(found, devices=max(1, devices))


def to_compile(
    task: TuneTask, is_built: Callable[[Candidate], bool]
) -> dict[str, Candidate]:
    """Return a list's candidates that are to be compiled, by what is built once."""
    return {
        one.build_key or one.choice_hash: one
        for one in task.offered.candidates
        if one.backend != ATEN and not is_built(one)
    }


def listed_row(choices: Iterable[TuneTask], heat: Heat) -> dict[str, Any]:
    """Return the journal's entry of what a build has listed.

    By list what there is to compile, candidates, and microseconds of a call.
    """
    return {
        "lists": {
            list_id(task): [
                len(to_compile(task, lambda _: False)),
                len(task.offered.candidates),
                round(heat.us(task.shape), 3),
            ]
            for task in choices
        }
    }


def _amounts(
    plan: Plan,
    options: BuildOptions,
    slots: int,
    lists: int,
    compiled: int,
    timed: int,
    call_s: float,
) -> Amounts:
    return Amounts(
        tokens=max(1, len(plan.policy.tokens)),
        lists=lists,
        compiled=compiled,
        timed=timed,
        call_s=call_s,
        slots=slots,
        devices=0 if plan.profile is None else _devices_here(),
        enumerated=not options.fresh and (plan.work / LISTS).exists(),
        baked=plan.program is not None,
        whole=options.bake == "model",
        frozen=plan.policy.frozen,
    )


def _devices_here() -> int:
    """Return how many GPUs this host seems to have, 1 at least; a cluster has others.

    Source: Linux's list of NVIDIA's driver, and the variable by which CUDA hides some.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(1, len([name for name in visible.split(",") if name.strip()]))
    return max(1, len(list(_DRIVER.glob("*"))))


def _has_choice(shape: GemmShape, plan: Plan) -> bool:
    """Whether a planned GEMM is likely to have a list of more than one candidate."""
    if plan.profile is not None:
        return shape.m > 1
    plain = shape.op == "bmm" and min(shape.m, shape.n, shape.k) > 1
    return plain or (plan.policy.frozen and shape.op != "bmm")


def _length(m: int, plan: Plan, options: BuildOptions) -> int:
    if plan.profile is None:
        return 2
    if options.search == "default":
        return _DEFAULT
    return next((length for most, length in _EXHAUSTIVE if m <= most), _LONGEST)


def _tried(number: int, options: BuildOptions) -> int:
    """Return how many of so many candidates a search tries."""
    if options.search != "smart" or number <= SHORT:
        return number
    return max(LEAST, round(SHARE * number))
