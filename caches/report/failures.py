"""What became of the candidates, and why some of them failed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from flytune.caches.columns import Status
from flytune.caches.records import TuningRecord
from flytune.caches.report.bundles import ReportedBundle, ReportedList
from flytune.caches.report.grids import style_of
from flytune.caches.words import counted, percent_text, tokens_text

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one backend's candidates."""

    backend: str
    candidates: int
    timed: int
    beaten: int
    """Of those, the ones that left the race early."""
    untimed: int
    """Compiled or alone in their list, and not timed."""
    failed: int

    @property
    def style(self) -> str:
        """The part of a class that stands for the backend."""
        return style_of(self.backend)


@dataclass(frozen=True, slots=True)
class Reason:
    """Candidates of one backend that failed alike."""

    backend: str
    status: str
    reason: str
    """Its first one's, word for word."""
    candidates: int
    lists: int
    share: float
    """Of the most frequent reason, for a bar."""
    example: str
    """The list of the first one."""

    @property
    def style(self) -> str:
        """The part of a class that stands for the backend."""
        return style_of(self.backend)


def fates(bundle: ReportedBundle) -> tuple[Fate, ...]:
    """Return what became of each backend's candidates."""
    every = [record for one in bundle.lists for record in one.tuned.records]
    return tuple(
        _fate(backend, [r for r in every if r.backend == backend])
        for backend in bundle.backends
    )


def _fate(backend: str, records: list[TuningRecord]) -> Fate:
    timed = [r for r in records if _is_timed(r)]
    beaten = sum(bool(r.pruned_by) for r in timed)
    failed = sum(is_failure(r) for r in records)
    untimed = len(records) - len(timed) - failed
    return Fate(backend, len(records), len(timed), beaten, untimed, failed)


def _is_timed(record: TuningRecord) -> bool:
    return record.status is Status.OK and record.median_us is not None


def is_failure(record: TuningRecord) -> bool:
    """Whether a candidate failed; one that could not be tried did not."""
    return record.status not in (Status.OK, Status.UNSUPPORTED)


def reasons(bundle: ReportedBundle) -> tuple[Reason, ...]:
    """Return the reasons of what has no time and was not alone, most frequent first.

    Reasons that differ in numbers alone are one.
    """
    found: dict[tuple[str, str, str], list[tuple[ReportedList, TuningRecord]]] = {}
    for one, record in _without_time(bundle):
        said = record.reason or ""
        key = (record.backend, str(record.status), _NUMBER.sub("#", said))
        found.setdefault(key, []).append((one, record))
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    most = len(ordered[0][1]) if ordered else 1
    return tuple(
        Reason(
            *(backend, status, some[0][1].reason or "no reason recorded", len(some)),
            lists=len({one.number for one, _ in some}),
            share=len(some) / most,
            example=f"{some[0][0].label}, {tokens_text(some[0][0].tokens)}",
        )
        for (backend, status, _), some in ordered
    )


def _without_time(
    bundle: ReportedBundle,
) -> Iterator[tuple[ReportedList, TuningRecord]]:
    for one in bundle.lists:
        for record in one.tuned.records:
            if record.status is not Status.OK:
                yield one, record


def failures_lead(bundle: ReportedBundle) -> str:
    """Return in a sentence how many failed."""
    every = fates(bundle)
    candidates, failed = sum(f.candidates for f in every), sum(f.failed for f in every)
    if not candidates:
        return "The bundle holds no candidate."
    if not failed:
        untried = [r for _, r in _without_time(bundle)]
        more = f"; {len(untried)} could not be tried" if untried else ""
        return f"None of {counted(candidates, 'candidate')} failed{more}."
    share = percent_text(failed / candidates)
    return (
        f"{failed:,} of {counted(candidates, 'candidate')} failed ({share}). A failed "
        "candidate is never chosen, and serving does not try it again."
    )
