"""An older bundle's lists as the candidates of another environment, and what is new.

The hashes of candidates hold torch's sources: a candidate is known again by backend,
template and configuration. Of each list its front is compiled first: the winner, the
runners-up, each backend's best, and what the older bundle does not know. Where the very
bytes come out that were timed, on the same device with the same driver, the decision
stands. Else the front is timed, all of it in one race, for times of two sessions do not
compare; and only where it has moved the rest is compiled and timed too.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flytune.caches.columns import BUDGET, SHAPE_COLUMNS, Status
from flytune.caches.lists import TunedList
from flytune.caches.records import TuningRecord
from flytune.caches.regression.spread import round_error
from flytune.caches.ties import SAME_BAND, SURE
from flytune.tuner.candidate import ATEN, TIMED, BuildResult, Candidate, TuneTask
from flytune.tuner.decision import Decision, decide, files_digest, untimed_record
from flytune.tuner.overlap import Timed
from flytune.tuner.recall import TRANSIENT
from flytune.tuner.recorded_runner import only
from flytune.tuner.survival import Changes

OLDER = "older"
"""The rule that leaves a candidate out: an older bundle has it behind the front."""
RUNNERS_UP = 2

_Signature = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Known:
    """A list that an older bundle has decided, as it is offered now."""

    task: TuneTask
    older: Mapping[str, TuningRecord]
    """The older records, by the hash that the candidate has now."""
    winner: str
    """The hash that the older winner has now."""
    front: frozenset[str]
    """Hashes of the candidates that come first, and of those that are new."""

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing beside the front."""
        return len(self.front) == len(self.task.offered.candidates)

    @property
    def knows_all(self) -> bool:
        """Whether the older bundle knows every candidate."""
        return len(self.older) == len(self.task.offered.candidates)

    @property
    def known_front(self) -> frozenset[str]:
        """What of the front the older bundle knows."""
        return self.front & self.older.keys()

    @property
    def first(self) -> TuneTask:
        """The task of the front alone."""
        return only(self.task, self.front)


class Upgrade:
    """The decisions of an older bundle, for lists whose hashes are others."""

    def __init__(self, lists: Iterable[TunedList], changed: Changes) -> None:
        self.changed = changed
        by_identity: dict[object, list[TunedList]] = {}
        for one in lists:
            by_identity.setdefault(one.identity, []).append(one)
        # Of several nobody knows which one it is.
        self._known = {k: some[0] for k, some in by_identity.items() if len(some) == 1}

    def known(self, task: TuneTask) -> Known | None:
        """Return what is known of a list; None where it was not decided by times."""
        blank = untimed_record(task, task.offered.candidates[0])
        tuned = self._known.get(TunedList((blank,)).identity)
        if tuned is None or not is_decided(tuned):
            return None
        by_signature = {_signature(r): r for r in tuned.records}
        older = {
            c.choice_hash: by_signature[_signature(c)]
            for c in task.offered.candidates
            if _signature(c) in by_signature
        }
        winner = next((h for h, r in older.items() if r.winner), None)
        # Two candidates that only their hashes tell apart cannot be known again.
        whole = len(by_signature) == len(tuned.records)
        if (
            winner is None
            or not whole
            or len(set(map(id, older.values()))) < len(older)
        ):
            return None
        leaders = front_of(tuned)
        front = frozenset(
            c.choice_hash
            for c in task.offered.candidates
            if (record := older.get(c.choice_hash)) is None
            or record in leaders
            or record.status in TRANSIENT
        )
        return Known(task, older, winner, front)

    def standing(
        self, known: Known, builds: Mapping[str, BuildResult]
    ) -> Decision | None:
        """Return the older decision, if each of the front is what was timed then.

        Args:
            builds: Of the front, by the hash of now.
        """
        if self.changed.times:
            return None
        for candidate in known.first.offered.candidates:
            record = known.older.get(candidate.choice_hash)
            build = builds[candidate.choice_hash]
            if record is None or not self._is_same(record, build):
                return None
        return Decision(
            known.task,
            tuple(
                _renamed(known, c) if c.choice_hash in known.front else _left(known, c)
                for c in known.task.offered.candidates
            ),
        )

    def _is_same(self, record: TuningRecord, build: BuildResult) -> bool:
        if build.status is not Status.OK or record.source != TIMED:
            return False
        if record.backend == ATEN:
            return not self.changed.library
        digest = files_digest(build.files)
        return digest is not None and digest == record.kernel_digest


def settled(known: Known, timed: Timed) -> Decision | None:
    """Return the decision of a list whose front was timed, unless the front moved.

    It moved where the older winner has no time, or a candidate's time over the
    winner's is another than it was, by more than `SAME_BAND` and surely. A front that
    is all of the list decides however it moved.

    Raises:
        FlytuneError: it is all of the list, and no candidate survived.
    """
    if known.is_whole:
        return decide(*timed, last=known.winner)
    if next(r for r in timed.results if r.choice_hash == known.winner).status is not (
        Status.OK
    ):
        return None
    decision = decide(*timed, last=known.winner)
    now = {record.choice_hash: record for record in decision.records}
    if any(_moved(known, now, name) for name in now if name in known.older):
        return None
    return Decision(
        known.task,
        tuple(
            now.get(c.choice_hash) or _left(known, c)
            for c in known.task.offered.candidates
        ),
    )


def is_decided(tuned: TunedList) -> bool:
    """Whether a list had a choice, and a winner with a time, and was not cut short.

    What a budget has left of a search may be the best.
    """
    winner = tuned.winner
    if any(record.pruned_by == BUDGET for record in tuned.records):
        return False
    return len(tuned.records) > 1 and winner is not None and bool(winner.median_us)


def front_of(tuned: TunedList) -> Sequence[TuningRecord]:
    """Return the winner, its runners-up, what is tied, and each backend's best."""
    timed = [record for record in tuned.timed() if record.pruned_by != OLDER]
    best = {record.backend: record for record in reversed(timed)}
    leaders = (
        *(() if tuned.winner is None else (tuned.winner,)),
        *timed[: 1 + RUNNERS_UP],
        *tuned.tied,
        *best.values(),
    )
    return [record for record in tuned.ranked if record in leaders]


def _signature(one: Candidate | TuningRecord) -> _Signature:
    return (one.backend, one.template or "", one.config)


def _moved(known: Known, now: Mapping[str, TuningRecord], name: str) -> bool:
    old, old_winner = known.older[name], known.older[known.winner]
    new, new_winner = now[name], now[known.winner]
    if old.median_us is None or new.median_us is None:
        return False
    assert old_winner.median_us is not None, "`Upgrade.known` said so"
    assert new_winner.median_us is not None, "`settled` said so"
    before = math.log(old.median_us / old_winner.median_us)
    after = math.log(new.median_us / new_winner.median_us)
    error = math.hypot(
        *(
            round_error(one.samples_us, one.median_us or 0.0)
            for one in (old, old_winner, new, new_winner)
        )
    )
    return abs(after - before) > math.log1p(SAME_BAND) + SURE * error


def _renamed(known: Known, candidate: Candidate) -> TuningRecord:
    """Return an older record as that of the candidate of now."""
    blank = untimed_record(known.task, candidate)
    shape = {c.name: getattr(blank, c.name) for c in SHAPE_COLUMNS}
    return replace(
        known.older[candidate.choice_hash],
        **shape,
        choice_hash=candidate.choice_hash,
        inductor_op=blank.inductor_op,
        inputs_key=blank.inputs_key,
        precision=blank.precision,
        baked=False,
        # When another build decided it says nothing in this one.
        at_s=None,
    )


def _left(known: Known, candidate: Candidate) -> TuningRecord:
    """Return the record of a candidate that is left out, with what it took once."""
    older = known.older[candidate.choice_hash]
    return replace(
        untimed_record(known.task, candidate),
        status=older.status,
        reason=older.reason,
        predicted_us=older.predicted_us if older.median_us is None else older.median_us,
        pruned_by=OLDER,
    )
