"""Join the plan's GEMMs with the lists that the program really offered."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from flytune.caches.program import model_path
from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import CandidateList, TuneTask
from flytune.tuner.operands import POSITIONS, problem


@dataclass(frozen=True, slots=True)
class Coverage:
    """How the plan and the program agree."""

    tasks: tuple[TuneTask, ...]
    """One a decision, in the order that the program asked."""
    missing: tuple[GemmShape, ...]
    """Planned, but in no list: fused away, or computed by something else."""
    unplanned: tuple[CandidateList, ...]
    """Offered, but in no plan."""


def join(shapes: Iterable[GemmShape], lists: Iterable[CandidateList]) -> Coverage:
    """Give each list its planned GEMM and merge the lists that are one decision."""
    shapes = tuple(shapes)
    seen: set[GemmShape] = set()
    tasks: dict[object, TuneTask] = {}
    unplanned: list[CandidateList] = []
    for offered in lists:
        planned = planned_for(offered, shapes)
        seen.update(planned)
        if not planned:
            # Decided like the others, or the bake would tune it.
            unplanned.append(offered)
            planned = (_unplanned_shape(offered),)
        modules = tuple(shape.module for shape in planned)
        old = tasks.get(offered.key)
        if old is None:
            tasks[offered.key] = TuneTask(planned[0], offered, modules)
            continue
        merged = (*old.modules, *(m for m in modules if m not in old.modules))
        tasks[offered.key] = replace(old, modules=merged, calls=old.calls + 1)
    missing = tuple(shape for shape in shapes if shape not in seen)
    return Coverage(tuple(tasks.values()), missing, tuple(unplanned))


def planned_for(
    offered: CandidateList, shapes: Iterable[GemmShape]
) -> tuple[GemmShape, ...]:
    """Return the planned GEMMs that a list may be.

    The module that the list names decides; a fusion's list names none, and then every
    GEMM of the same sizes is meant.
    """
    if offered.op not in POSITIONS:
        return ()
    sizes = problem(offered)
    same = tuple(
        s
        for s in shapes
        if (s.batch, s.m, s.n, s.k) == sizes
        and (s.op == "bmm") == (offered.op == "bmm")
    )
    named = model_path(offered.piece, offered.module)
    exact = tuple(s for s in same if s.module == named)
    return exact or same


def _unplanned_shape(offered: CandidateList) -> GemmShape:
    """Return the GEMM of a list that no plan has, as far as its tensors tell."""
    *batch, m, n = (1, 1, *offered.output.sizes)[-3:]
    first = offered.inputs[0]
    return GemmShape(
        op="bmm" if offered.op == "bmm" else "mm",
        m=m,
        n=n,
        k=first.sizes[-1] if first.sizes else 1,
        batch=batch[0],
        a_dtype=first.dtype,
        b_dtype=offered.inputs[-1].dtype,
        out_dtype=offered.output.dtype,
        module=model_path(offered.piece, offered.module),
        rule="not planned",
    )
