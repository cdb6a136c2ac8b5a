"""Lists whose every candidate was timed once, as a search meets them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flytune.caches.columns import Status
from flytune.caches.lists import TunedList
from flytune.caches.recorded import RecordedTime
from flytune.caches.records import TuningRecord
from flytune.tuner.candidate import (
    BuildResult,
    Candidate,
    CandidateList,
    TensorSpec,
    TuneTask,
)
from flytune.tuner.overlap import Timed
from flytune.tuner.recorded_runner import RecordedRunner
from flytune.tuner.smart.cost_model import Observed, problem_of
from flytune.tuner.smart.limits import REGISTERS, SHARED_MEMORY, Limits
from flytune.tuner.smart.list_search import MODEL


@dataclass(frozen=True)
class Replayed:
    """One list; its builds and times are those that were recorded."""

    records: tuple[TuningRecord, ...]
    limits: Limits

    @property
    def by_hash(self) -> dict[str, TuningRecord]:
        return {record.choice_hash: record for record in self.records}

    @property
    def timed(self) -> list[TuningRecord]:
        """Those that ran."""
        return [r for r in self.records if r.median_us is not None]

    @property
    def best(self) -> TuningRecord:
        """The fastest of all."""
        return min(self.timed, key=lambda r: r.median_us or math.inf)

    @property
    def task(self) -> TuneTask:
        """The list as a program would offer it."""
        first, shape = self.records[0], TunedList(self.records).shape
        inputs = tuple(
            TensorSpec((), strides, first.a_dtype, offset)
            for strides, offset in zip(first.strides, first.offsets, strict=True)
        )
        offered = CandidateList(
            op=first.inductor_op or first.op,
            inputs_key=first.inputs_key or "",
            precision=first.precision or "",
            inputs=inputs,
            output=TensorSpec((), (), first.out_dtype),
            candidates=tuple(
                Candidate(r.backend, r.template or "", r.config, r.choice_hash, b"")
                for r in self.records
            ),
            piece="",
            tokens=first.m,
        )
        return TuneTask(shape, offered, (shape.module,))

    def time(self, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        """Yield what was recorded of lists, as the workers yield what they measure."""
        by_hash = self.by_hash
        runner = RecordedRunner(map(_time, self.timed))
        for task in tasks:
            records = [by_hash[c.choice_hash] for c in task.offered.candidates]
            builds = tuple(
                BuildResult(r.choice_hash, r.status, r.reason or "") for r in records
            )
            yield Timed(task, builds, runner.run(task, builds))

    def was_tried(self, record: TuningRecord) -> bool:
        """Whether a search's record is of a candidate that it compiled."""
        return record.pruned_by not in (MODEL, SHARED_MEMORY, REGISTERS)


def replayed(known: Iterable[Observed]) -> list[Replayed]:
    """Return the lists that are known, in their order."""
    lists: dict[object, list[Observed]] = {}
    for one in known:
        lists.setdefault(problem_of(one.record), []).append(one)
    return [
        Replayed(tuple(one.record for one in some), some[0].limits)
        for some in lists.values()
    ]


def regret_interval(chosen: TuningRecord, best: TuningRecord) -> tuple[float, float]:
    """Return the bounds of a choice's time over the best's, two errors wide."""
    assert chosen.median_us is not None, "timed"
    assert best.median_us is not None, "timed"
    ratio = chosen.median_us / best.median_us
    if chosen is best:
        return ratio, ratio
    error = math.hypot(_error(chosen), _error(best))
    return ratio * math.exp(-2 * error), ratio * math.exp(2 * error)


# 1.4826 median absolute deviations are a standard deviation, and a median is 1.2533
# times less sure than a mean.
_MEDIAN_ERROR = 1.4826 * 1.2533


def _error(one: TuningRecord) -> float:
    """Return the standard error of a median, as a share of it."""
    assert one.median_us is not None, "timed"
    assert one.mad_us is not None, "timed"
    return _MEDIAN_ERROR * one.mad_us / one.median_us / math.sqrt(one.rounds or 1)


def _time(one: TuningRecord) -> RecordedTime:
    assert one.status is Status.OK, "what has a time ran"
    assert one.median_us is not None, "only what ran"
    return RecordedTime(
        *(one.op, one.m, one.n, one.k, one.groups, one.scaling or one.a_dtype),
        backend=one.backend,
        us=one.median_us,
        source="recorded",
        choice_hash=one.choice_hash,
        layout=one.layout,
    )
