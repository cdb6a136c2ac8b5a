"""The candidate lists that records are of, each with its order and its winner."""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from flytune.caches.columns import SHAPE_COLUMNS, Status
from flytune.caches.manifest import Manifest
from flytune.caches.records import TuningRecord
from flytune.caches.ties import tied_with_fastest
from flytune.shapes.gemm import GemmShape

_COUNTED = frozenset({"count", "reach"})
"""Columns of a shape that say how often and how it is called, not what it is."""


@dataclass(frozen=True)
class TunedList:
    """The records of one candidate list; at least one."""

    records: tuple[TuningRecord, ...]
    """In the order of the file."""

    @property
    def shape(self) -> GemmShape:
        """The GEMM that the list computes."""
        first = self.records[0]
        row: dict[str, Any] = {c.name: getattr(first, c.name) for c in SHAPE_COLUMNS}
        return GemmShape(**{**row, "reach": row["reach"] or "inductor"})

    @property
    def name(self) -> str:
        """The shape in words, and the module that calls it."""
        module = self.shape.module
        return f"{self.shape} at {module}" if module else str(self.shape)

    @property
    def identity(self) -> tuple[Any, ...]:
        """What makes it the same list in a bundle of another release of torch.

        Inductor's own keys and hashes are left out, for they hold its sources.
        """
        first = self.records[0]
        return (*_shape_of(first), first.inductor_op, first.strides, first.offsets)

    @property
    def winner(self) -> TuningRecord | None:
        """The chosen candidate; None of a list that was compiled and not decided."""
        return next((r for r in self.records if r.winner), None)

    @functools.cached_property
    def ranked(self) -> tuple[TuningRecord, ...]:
        """The candidates in order: by median, then those that have none."""
        return tuple(sorted(self.records, key=_by_median))

    @functools.cached_property
    def tied(self) -> tuple[TuningRecord, ...]:
        """The candidates that cannot be told from the fastest, by the race's rule."""
        racing = {r.choice_hash: r.samples_us for r in self.timed() if not r.pruned_by}
        # Recorded times have a sample each, and rounds that are not aligned no order.
        if len({len(samples) for samples in racing.values()}) != 1:
            return ()
        names = tied_with_fastest(racing)
        return tuple(r for r in self.ranked if r.choice_hash in names)

    def timed(self) -> Iterator[TuningRecord]:
        """Yield the candidates with a time, the fastest first."""
        for record in self.ranked:
            if record.status is Status.OK and record.median_us is not None:
                yield record

    def best_of(self, backend: str) -> TuningRecord | None:
        """Return the fastest candidate of a backend that has a time."""
        return next((r for r in self.timed() if r.backend == backend), None)


def lists_of(records: Iterable[TuningRecord]) -> tuple[TunedList, ...]:
    """Return the lists of a bundle's records, in the order of the file."""
    lists: dict[tuple[Any, ...], list[TuningRecord]] = {}
    for record in records:
        # Lists of one key differ in their candidates, and were decided one by one.
        key = (record.inductor_op, record.inputs_key, record.precision, record.at_s)
        lists.setdefault((*_shape_of(record), *key), []).append(record)
    return tuple(TunedList(tuple(some)) for some in lists.values())


def calls_of(one: TunedList, manifest: Manifest) -> dict[str, int]:
    """Return every module that calls a list, and its calls in a forward pass.

    Its records name the first module alone; that is "" where they know none. Bundles
    of earlier versions do not say how often each calls it: their records count the
    first's calls, and the others are taken to call as often.
    """
    first, shape = one.records[0], one.shape
    own, count = shape.module, shape.count
    name = (first.inductor_op, first.inputs_key, str(shape))
    for row in manifest.winners:
        modules, counts = row.get("modules"), row.get("counts")
        if (row.get("op"), row.get("inputs_key"), row.get("shape")) != name:
            continue
        if isinstance(modules, list) and modules[:1] == [own]:
            names = tuple(map(str, modules))
            each = counts if _are_counts(counts, len(names)) else [count] * len(names)
            return dict(zip(names, each, strict=True))
    return {own: count}


def _are_counts(counts: object, length: int) -> TypeGuard[list[int]]:
    return (
        isinstance(counts, list)
        and len(counts) == length
        and all(type(each) is int and each >= 0 for each in counts)
    )


def _shape_of(record: TuningRecord) -> tuple[Any, ...]:
    names = (c.name for c in SHAPE_COLUMNS if c.name not in _COUNTED)
    return tuple(getattr(record, name) for name in names)


def _by_median(record: TuningRecord) -> tuple[bool, float, str]:
    untimed = record.status is not Status.OK or record.median_us is None
    return (untimed, record.median_us or 0.0, record.choice_hash)
