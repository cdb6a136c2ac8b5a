"""Lists that no program has offered, for what only hands lists about."""

from collections.abc import Iterable

from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import Candidate, CandidateList, TensorSpec, TuneTask


def made_up_task(
    number: int, shape: GemmShape, candidates: Iterable[Candidate]
) -> TuneTask:
    """Return a decision to make, unlike those of other numbers."""
    offered = CandidateList(
        op=shape.op,
        inputs_key=str(number),
        precision="highest",
        inputs=(),
        output=TensorSpec((), (), shape.out_dtype),
        candidates=tuple(candidates),
        piece="",
        tokens=shape.m,
    )
    return TuneTask(shape, offered, (shape.module,))
