"""Join the plan's GEMMs with the lists that the program really offered."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from types import MappingProxyType

from flytune.caches.program import model_path
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import MX, GemmShape, Op
from flytune.shapes.reach import is_reached
from flytune.tuner.candidate import CandidateList, TuneTask
from flytune.tuner.isolated import piece_name
from flytune.tuner.operands import LINEARS, POSITIONS, Places, problem
from flytune.tuner.unlisted import NOT_SAID

# By Inductor's name; a linear is a mm whatever is fused to it.
_KINDS: dict[str, Op] = {
    "bmm": "bmm",
    "scaled_mm": "scaled_mm",
    "grouped_mm": "grouped_mm",
}


@dataclass(frozen=True, slots=True)
class Coverage:
    """How the plan and the program agree."""

    tasks: tuple[TuneTask, ...]
    """One a decision, in the order that the program asked."""
    missing: tuple[GemmShape, ...]
    """Planned, but in no list: fused away, or computed by something else."""
    unplanned: tuple[CandidateList, ...]
    """Offered, but in no plan."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why what is missing has no list, by `isolated.piece_name`."""

    @property
    def unlisted(self) -> dict[str, tuple[str, ...]]:
        """Why planned GEMMs are in no list: a reason and whom it befell."""
        return _by_reason(
            (
                self.reasons.get(piece_name(shape), NOT_SAID),
                f"{shape} at {shape.module}",
            )
            for shape in self.missing
        )

    @property
    def declined(self) -> dict[str, tuple[str, ...]]:
        """Why lists hold no candidate of FlyDSL's: a reason and whom it befell."""
        return _by_reason(
            (task.offered.declined, f"{task.shape} at {task.modules[0]}")
            for task in self.tasks
            if task.offered.declined
        )


def _by_reason(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Gather (reason, name) pairs: each reason and all whom it befell."""
    found: dict[str, tuple[str, ...]] = {}
    for reason, name in pairs:
        found[reason] = (*found.get(reason, ()), name)
    return found


def join(
    shapes: Iterable[GemmShape],
    lists: Iterable[CandidateList],
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> Coverage:
    """Give each list its planned GEMM and merge the lists that are one decision.

    Args:
        reasons: Of `Coverage`.
    """
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
        # What serving reaches stands for what it has besides.
        planned = tuple(sorted(planned, key=lambda shape: not is_reached(shape)))
        known = tasks.get(offered.key)
        task = _task(offered, planned) if known is None else _by(known, planned)
        tasks[offered.key] = task
    missing = tuple(shape for shape in shapes if shape not in seen)
    return Coverage(tuple(tasks.values()), missing, tuple(unplanned), reasons)


def _task(offered: CandidateList, planned: Sequence[GemmShape]) -> TuneTask:
    counts = _counts(planned)
    shape = replace(planned[0], count=sum(counts.values()))
    return TuneTask(shape, offered, tuple(counts), tuple(counts.values()))


def _by(task: TuneTask, planned: Iterable[GemmShape]) -> TuneTask:
    """Return a task that another list of the same decision asks for too."""
    counts = dict(zip(task.modules, task.counts, strict=True))
    for module, count in _counts(planned).items():
        counts.setdefault(module, count)
    return replace(
        task,
        shape=replace(task.shape, count=sum(counts.values())),
        modules=tuple(counts),
        counts=tuple(counts.values()),
        calls=task.calls + 1,
    )


def _counts(planned: Iterable[GemmShape]) -> dict[str, int]:
    """Return how often a forward pass calls each module's GEMMs."""
    counts: dict[str, int] = {}
    for shape in planned:
        counts[shape.module] = counts.get(shape.module, 0) + shape.count
    return counts


def check_excluded(coverage: Coverage, excluded: frozenset[str]) -> None:
    """Refuse to exclude what is not offered, or all that is.

    Raises:
        FlytuneError: a hash is in no list, or a list has no candidate left.
    """
    lists = [
        {candidate.choice_hash for candidate in task.offered.candidates}
        for task in coverage.tasks
    ]
    if unknown := excluded.difference(*lists):
        raise FlytuneError(f"no list offers what --exclude names: `{min(unknown)}`")
    for task, hashes in zip(coverage.tasks, lists, strict=True):
        if hashes <= excluded:
            raise FlytuneError(
                f"--exclude leaves no candidate for {task.shape} at {task.modules[0]}"
            )


def planned_for(
    offered: CandidateList, shapes: Iterable[GemmShape]
) -> tuple[GemmShape, ...]:
    """Return the planned GEMMs that a list may be.

    The module that the list names decides; a fusion's list names none, and then every
    GEMM of the same sizes is meant. A list of an isolated shape is of that problem.
    """
    if offered.op not in POSITIONS:
        return ()
    sizes = problem(offered)
    same = tuple(
        s
        for s in shapes
        if (s.batch, s.groups, s.m, s.n, s.k) == astuple(sizes)
        and _kind(s.op) == _kind(offered.op)
        and (s.scaling is None or _scheme(s) == _listed_scheme(offered))
    )
    isolated = tuple(s for s in same if piece_name(s) == offered.piece)
    named = model_path(offered.piece, offered.module)
    exact = tuple(s for s in same if s.module == named)
    return isolated or exact or same


def _kind(op: str) -> Op:
    """Return the plan's name of an op, without what is added to a linear's product."""
    return _KINDS.get(op, "mm")


def _scheme(shape: GemmShape) -> tuple[str, str, str | None]:
    return shape.a_dtype, shape.b_dtype, shape.scaling


def _listed_scheme(offered: CandidateList) -> tuple[str, str, str | None]:
    places = POSITIONS[offered.op]
    a, b = offered.inputs[places.a], offered.inputs[places.b]
    return a.dtype, b.dtype, _scaling(offered, places)


def _scaling(offered: CandidateList, places: Places) -> str | None:
    """Return the scale scheme of a list, as `GemmShape` names it."""
    if places.scale_a < 0:
        return None
    scale = offered.inputs[places.scale_a]
    if scale.dtype == "float8_e8m0fnu":
        of_type = {dtype: name for name, dtype in MX.items()}
        return of_type.get(offered.inputs[places.a].dtype, scale.dtype)
    return "rowwise" if scale.sizes[1:] else "tensorwise"


def _unplanned_shape(offered: CandidateList) -> GemmShape:
    """Return the GEMM of a list that no plan has, as far as its tensors tell."""
    module = model_path(offered.piece, offered.module)
    if offered.op not in POSITIONS:
        return _unknown_shape(offered, module)
    sizes, places = problem(offered), POSITIONS[offered.op]
    a, b = offered.inputs[places.a], offered.inputs[places.b]
    bias = 0 <= places.bias < len(offered.inputs)
    kind = _kind(offered.op)
    return GemmShape(
        op="addmm" if kind == "mm" and bias else kind,
        m=sizes.m,
        n=sizes.n,
        k=sizes.k,
        batch=sizes.batch,
        groups=sizes.groups,
        a_dtype=a.dtype,
        b_dtype=b.dtype,
        out_dtype=offered.output.dtype,
        layout="NN" if offered.op not in LINEARS and b.strides[-1] == 1 else "TN",
        scaling=_scaling(offered, places),
        bias=bias,
        module=module,
        rule="not planned",
    )


def _unknown_shape(offered: CandidateList, module: str) -> GemmShape:
    *batch, m, n = (1, 1, *offered.output.sizes)[-3:]
    first = offered.inputs[0]
    return GemmShape(
        op="mm",
        m=m,
        n=n,
        k=first.sizes[-1] if first.sizes else 1,
        batch=batch[0],
        a_dtype=first.dtype,
        b_dtype=offered.inputs[-1].dtype,
        out_dtype=offered.output.dtype,
        module=module,
        rule="not planned",
    )
