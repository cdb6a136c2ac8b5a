"""The decision of one candidate list: the winner and a record of every candidate."""

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flytune.caches.columns import Status
from flytune.caches.inductor import Timing, decision_ms
from flytune.caches.records import TuningRecord
from flytune.caches.ties import spread
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import ATEN, BuildResult, Candidate, RunResult, TuneTask
from flytune.tuner.select import choose, fixed_order

ONLY_CANDIDATE = "only candidate"
_KERNEL_ENDINGS = (".so", ".cubin", ".hsaco", ".pkl")
"""The last is FlyDSL's."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The records of one list, its winner among them."""

    task: TuneTask
    records: tuple[TuningRecord, ...]

    @property
    def winner(self) -> TuningRecord:
        """The chosen candidate's record."""
        return next(record for record in self.records if record.winner)

    @property
    def was_choice(self) -> bool:
        """Whether there was anything to choose."""
        return len(self.records) > 1

    @property
    def was_timed(self) -> bool:
        """Whether its winner has a time."""
        return self.winner.median_us is not None

    def decided_at(self, at_s: float) -> "Decision":
        """Return the decision with the moment of it, in seconds of the build."""
        return replace(self, records=tuple(replace(r, at_s=at_s) for r in self.records))

    def milliseconds(self) -> dict[str, float]:
        """Return the times that make Inductor decide so, by choice hash."""
        medians = {
            r.choice_hash: r.median_us if r.status is Status.OK else None
            for r in self.records
        }
        return decision_ms(self.winner.choice_hash, medians)

    def as_baked(self, taken: Collection[tuple[str, str]]) -> "Decision":
        """Return the decision with what a bake took.

        Args:
            taken: Of all lists, each a choice hash and a key of inputs.
        """
        hashes = {choice_hash for choice_hash, _ in taken}

        def baked(record: TuningRecord) -> bool:
            # A template's hash is of its source, which holds the sizes; packing has
            # changed its inputs. The library's is the same for every list.
            if record.backend == ATEN:
                return (record.choice_hash, str(record.inputs_key)) in taken
            return record.choice_hash in hashes

        return replace(
            self, records=tuple(replace(r, baked=baked(r)) for r in self.records)
        )


def timings(decisions: Iterable[Decision]) -> tuple[Timing, ...]:
    """Return what Inductor's timings file must hold for all decisions.

    Two lists may share a key and a candidate, which has one time in that file: the
    second list is then scaled to the first, which keeps its order.

    Raises:
        FlytuneError: lists share several candidates and disagree about them.
    """
    files: dict[tuple[str, str, str], dict[str, float]] = {}
    taken = []
    for decision in decisions:
        if not decision.was_choice:
            continue
        offered = decision.task.offered
        key = (offered.op, offered.inputs_key, offered.precision)
        stored, own = files.setdefault(key, {}), decision.milliseconds()
        shared = [
            choice
            for choice, ms in own.items()
            if math.isfinite(ms) and math.isfinite(stored.get(choice, math.inf))
        ]
        factor = stored[shared[0]] / own[shared[0]] if shared else 1.0
        for choice, ms in own.items():
            stored.setdefault(choice, ms * factor)
        taken.append((decision, stored, tuple(own)))
    for decision, stored, choices in taken:
        best = min(choices, key=lambda choice: stored[choice])
        if best != decision.winner.choice_hash:
            raise FlytuneError(
                f"two lists disagree about one candidate: {decision.task.shape}: "
                f"`{best}`"
            )
    return tuple(
        Timing(*key, choice, ms)
        for key, stored in files.items()
        for choice, ms in stored.items()
    )


def decide(
    task: TuneTask,
    builds: Sequence[BuildResult],
    results: Sequence[RunResult],
    last: str = "",
) -> Decision:
    """Choose the winner of one list and make its records.

    A list that the runner cannot try at all is decided by the fixed order, untimed.

    Args:
        last: As for `choose`.

    Raises:
        FlytuneError: no candidate survived.
    """
    records = judged(task, builds, results, last)
    if not any(record.winner for record in records):
        raise none_survived(task, records)
    return Decision(task, records)


def none_survived(task: TuneTask, records: Iterable[TuningRecord]) -> FlytuneError:
    """Return the error of a list without a winner, with what became of the rest."""
    reasons = sorted({f"{r.status}: {r.reason}" for r in records if r.reason})
    where = f"{task.shape} at {task.modules[0]}"
    return FlytuneError(f"no candidate survived for {where}: {'; '.join(reasons)}")


def judged(
    task: TuneTask,
    builds: Sequence[BuildResult],
    results: Sequence[RunResult],
    last: str = "",
) -> tuple[TuningRecord, ...]:
    """Return a record of each candidate; none is the winner where none survived.

    Args:
        last: As for `choose`.
    """
    by_hash = {r.choice_hash: r for r in results}
    survivors = [
        c
        for c in task.offered.candidates
        if by_hash[c.choice_hash].status is Status.OK
        and not by_hash[c.choice_hash].beaten
    ]
    samples = {r.choice_hash: r.samples_us for r in results if r.samples_us}
    winner = None
    if survivors:
        winner = choose(survivors, samples, last)
    elif all(r.status is Status.UNSUPPORTED for r in results):
        winner = min(task.offered.candidates, key=fixed_order)
    return tuple(
        _record(task, candidate, build, by_hash[candidate.choice_hash], winner)
        for candidate, build in zip(task.offered.candidates, builds, strict=True)
    )


def _record(
    task: TuneTask,
    candidate: Candidate,
    build: BuildResult,
    result: RunResult,
    winner: Candidate | None,
) -> TuningRecord:
    offered = task.offered
    summary = spread(result.samples_us) if result.samples_us else None
    return TuningRecord.of_shape(
        task.shape,
        backend=candidate.backend,
        template=candidate.template,
        config=candidate.config,
        choice_hash=candidate.choice_hash,
        status=result.status,
        reason=result.reason or None,
        median_us=summary.median_us if summary else None,
        mad_us=summary.mad_us if summary else None,
        rounds=len(result.samples_us) or None,
        samples_us=result.samples_us,
        rel_error=_finite(result.rel_error),
        compile_s=build.compile_s or None,
        strides=tuple(spec.strides for spec in offered.inputs),
        offsets=tuple(spec.offset for spec in offered.inputs),
        device_uuid=result.device_uuid,
        method=result.method or None,
        clock_mhz=result.clock_mhz,
        source=result.source if result.samples_us else None,
        kernel_digest=files_digest(build.files),
        pruned_by="race" if result.beaten else None,
        winner=winner is not None and candidate.choice_hash == winner.choice_hash,
        inductor_op=offered.op,
        inputs_key=offered.inputs_key,
        precision=offered.precision,
        canary_us=result.canary_us,
        batch_s=result.batch_s,
    )


def untimed_records(
    task: TuneTask, builds: Mapping[str, BuildResult]
) -> tuple[TuningRecord, ...]:
    """Return the records of a list that was compiled and not timed: nobody won."""
    records = []
    for candidate in task.offered.candidates:
        build = builds[candidate.choice_hash]
        result = RunResult(candidate.choice_hash, build.status, build.reason)
        records.append(_record(task, candidate, build, result, None))
    return tuple(records)


def untimed_record(task: TuneTask, candidate: Candidate) -> TuningRecord:
    """Return the record of a candidate that is not built either."""
    name = candidate.choice_hash
    build, result = BuildResult(name, Status.OK), RunResult(name, Status.OK)
    return _record(task, candidate, build, result, None)


def lone(task: TuneTask) -> Decision:
    """Return the decision of a list of one: there is nothing to choose or to time."""
    candidate = task.offered.candidates[0]
    name = candidate.choice_hash
    result = RunResult(name, Status.OK, ONLY_CANDIDATE)
    build = BuildResult(name, Status.OK)
    return Decision(task, (_record(task, candidate, build, result, candidate),))


def _finite(value: float | None) -> float | None:
    return value if value is not None and value < float("inf") else None


def files_digest(files: Mapping[str, bytes]) -> str | None:
    """Return one digest over a candidate's compiled files; None for a library call."""
    kernels = sorted(name for name in files if name.endswith(_KERNEL_ENDINGS))
    if not kernels:
        return None
    digest = hashlib.sha256()
    for name in kernels:
        digest.update(files[name])
    return digest.hexdigest()
