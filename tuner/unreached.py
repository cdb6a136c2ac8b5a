"""Lists that a budget left no time for: they get the library's kernel, untimed."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flytune.caches.bundle import Bundle
from flytune.caches.columns import BUDGET
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import ATEN, BuildResult, Candidate, TuneTask
from flytune.tuner.decision import Decision, none_survived, untimed_record
from flytune.tuner.select import fixed_order

UNREACHED = "the budget ended before it was timed"
"""The reason of a winner that nothing but the fixed order chose."""


def library_of(task: TuneTask, refused: Mapping[str, BuildResult]) -> Candidate | None:
    """Return the library's kernel that the fixed order takes; None: there is none.

    Args:
        refused: What of the list may not be tried.
    """
    library = [
        candidate
        for candidate in task.offered.candidates
        if candidate.backend == ATEN and candidate.choice_hash not in refused
    ]
    return min(library, key=fixed_order, default=None)


def unreached(task: TuneTask, refused: Mapping[str, BuildResult]) -> Decision:
    """Return the decision of a list that was not reached.

    Args:
        refused: What of the list may not be tried, and why.

    Raises:
        FlytuneError: there is no library's kernel that may be tried.
    """
    winner = library_of(task, refused)
    records = []
    for candidate in task.offered.candidates:
        name = candidate.choice_hash
        record = replace(untimed_record(task, candidate), pruned_by=BUDGET)
        if (refusal := refused.get(name)) is not None:
            record = replace(record, status=refusal.status, reason=refusal.reason)
        if winner is not None and name == winner.choice_hash:
            record = replace(record, reason=UNREACHED, winner=True)
        records.append(record)
    if winner is None:
        raise none_survived(task, records)
    return Decision(task, tuple(records))


def is_cut_short(path: Path) -> bool:
    """Whether there is a bundle whose build had no time for some of its lists."""
    try:
        coverage = Bundle.open(path).manifest.coverage
    except (FlytuneError, OSError):
        # Nothing is there, or something else than a bundle.
        return False
    return bool(coverage.get("over_budget"))


def is_cut(decision: Decision) -> bool:
    """Whether a budget has ended a list's search before it was done."""
    return any(record.pruned_by == BUDGET for record in decision.records)
