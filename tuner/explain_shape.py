"""One candidate list explained: why its winner won, and what serving looks up."""

import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from flytune.caches.bundle import Bundle
from flytune.caches.expected import CACHES
from flytune.caches.inductor import stored_timings
from flytune.caches.lists import TunedList, calls_of
from flytune.caches.records import TuningRecord
from flytune.shapes.errors import FlytuneError
from flytune.tuner.recorded_runner import METHOD
from flytune.tuner.select import fixed_order

_TIMINGS = f"{CACHES}/cache/"
_ListKey = tuple[str, str, str]
"""Op, key of the inputs and precision: under which Inductor looks a list up."""


class Why(StrEnum):
    """Why a candidate won its list; a closed set."""

    ONLY = "only"
    """There was no choice."""
    UNDECIDED = "undecided"
    """Nobody won: the list was compiled and not timed."""
    UNTIMED = "untimed"
    """No time, so that the fixed order decided."""
    SURVIVED = "survived"
    """It alone has a time."""
    TIED = "tied"
    FASTEST = "fastest"
    OTHER = "other"
    """The stored times tell of another."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What the best of a backend that did not win would cost."""

    backend: str
    best: TuningRecord | None
    """None where none of its candidates has a time."""
    over: float | None
    """Share by which it takes longer than the winner, 0.03 for 3 %."""
    failed: Mapping[str, int]
    """Candidates without a time, by status; "ok" where they were not timed."""


@dataclass(frozen=True, slots=True)
class StoredTimes:
    """What a timings file of the bundle says of one list."""

    path: str
    """Within the bundle."""
    ms: Mapping[str, float]
    """By choice hash; infinite for a candidate that must never be chosen."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One list, and what is to say of it."""

    tuned: TunedList
    calls: Mapping[str, int]
    """Every module that asks for it, "" for one that is not known, and its calls in a
    forward pass."""
    stored: tuple[StoredTimes, ...]
    """One a timings file that holds the list; none where there was no choice."""
    kernels: tuple[str, ...]
    """Files of the bundle that are the winner's kernel as it was timed."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that ask for it, as far as they are known."""
        return tuple(filter(None, self.calls))

    @property
    def count(self) -> int:
        """Calls in a forward pass, by all of its modules."""
        return sum(self.calls.values())

    @property
    def why(self) -> Why:
        """Why the winner won."""
        tuned, winner = self.tuned, self.tuned.winner
        if winner is None:
            return Why.UNDECIDED
        if len(tuned.records) == 1:
            return Why.ONLY
        if winner.median_us is None:
            return Why.UNTIMED
        if len(self.times) == 1:
            return Why.SURVIVED
        if len(tuned.tied) > 1 and winner in tuned.tied:
            return Why.TIED
        return Why.FASTEST if winner == self.times[0] else Why.OTHER

    @property
    def times(self) -> tuple[TuningRecord, ...]:
        """The candidates with a time, the fastest first."""
        return tuple(self.tuned.timed())

    @property
    def recorded(self) -> bool:
        """Whether the winner's time is one that others recorded."""
        return self.tuned.winner is not None and self.tuned.winner.method == METHOD

    @property
    def first_in_order(self) -> bool:
        """Whether the winner is the one that the fixed order takes of a tie."""
        order = min(self.tuned.tied, key=fixed_order, default=None)
        return order == self.tuned.winner

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The other backends, the one with the fastest candidate first."""
        won = None if self.tuned.winner is None else self.tuned.winner.backend
        names = dict.fromkeys(record.backend for record in self.tuned.ranked)
        return tuple(self._backend(name) for name in names if name != won)

    def over(self, record: TuningRecord) -> float | None:
        """Return the share by which a candidate takes longer than the winner."""
        winner = self.tuned.winner
        if winner is None or not winner.median_us or record.median_us is None:
            return None
        return record.median_us / winner.median_us - 1

    def _backend(self, name: str) -> Backend:
        best = self.tuned.best_of(name)
        without = (
            str(record.status)
            for record in self.tuned.records
            if record.backend == name and record.median_us is None
        )
        over = None if best is None else self.over(best)
        return Backend(name, best, over, dict(Counter(without)))


def explain(bundle: Bundle, lists: tuple[TunedList, ...]) -> tuple[Explanation, ...]:
    """Explain lists of a bundle, in their order.

    Raises:
        FlytuneError: a file breaks a rule of the bundle, or its timings cannot be read.
    """
    stored = _timings_of(bundle)
    return tuple(
        Explanation(
            tuned,
            calls_of(tuned, bundle.manifest),
            stored.get(_list_key(tuned), ()),
            tuple(_kernel_files(bundle, tuned.winner)),
        )
        for tuned in lists
    )


def _list_key(tuned: TunedList) -> _ListKey:
    first = tuned.records[0]
    return (str(first.inductor_op), str(first.inputs_key), str(first.precision))


def _timings_of(bundle: Bundle) -> Mapping[_ListKey, tuple[StoredTimes, ...]]:
    names = [name for name in bundle.manifest.files if name.startswith(_TIMINGS)]
    found: dict[_ListKey, tuple[StoredTimes, ...]] = {}
    if not names:
        return found
    with tempfile.TemporaryDirectory(prefix="flytune-timings-") as directory:
        placed = Path(directory) / "bundle"
        bundle.place(placed, only=names)
        for name in names:
            for op, inputs, precision, ms in stored_timings(_json(placed / name), name):
                key = (op, inputs, precision)
                found[key] = (*found.get(key, ()), StoredTimes(name, ms))
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise FlytuneError(f"bundle's timings cannot be read: {path.name}") from error


def _kernel_files(bundle: Bundle, winner: TuningRecord | None) -> Iterator[str]:
    """Yield the files that are a candidate's kernel; one of several files is none."""
    digest = None if winner is None else winner.kernel_digest
    for path, entry in bundle.manifest.files.items():
        if entry.sha256 == digest:
            yield path


def rows(one: Explanation) -> Iterator[dict[str, Any]]:
    """Yield the JSON rows of a list: the list's own, then one a candidate, in order."""
    winner = one.tuned.winner
    yield {
        "row": "list",
        "shape": str(one.tuned.shape),
        "modules": list(one.modules),
        "count": one.count,
        "candidates": len(one.tuned.records),
        "winner": None if winner is None else winner.choice_hash,
        "why": str(one.why),
        "recorded": one.recorded,
        "tied": [record.choice_hash for record in one.tuned.tied],
        "backends": [_backend_row(backend) for backend in one.backends],
        "lookup": {
            **dict(zip(_LOOKUP, _list_key(one.tuned), strict=True)),
            "timings": [
                {"path": stored.path, "ms": _finite(stored.ms)} for stored in one.stored
            ],
            "kernels": list(one.kernels),
        },
    }
    for place, record in enumerate(one.tuned.ranked, 1):
        yield {
            "row": "candidate",
            "place": place,
            "over": one.over(record),
            "tied": record in one.tuned.tied,
            **record.to_row(),
        }


_LOOKUP = ("inductor_op", "inputs_key", "precision")


def _backend_row(backend: Backend) -> dict[str, Any]:
    best = backend.best
    return {
        "backend": backend.backend,
        "choice_hash": None if best is None else best.choice_hash,
        "median_us": None if best is None else best.median_us,
        "over": backend.over,
        "failed": dict(backend.failed),
    }


def _finite(ms: Mapping[str, float]) -> dict[str, float | None]:
    """Return times as JSON can hold them: null for what must never be chosen."""
    return {name: value if math.isfinite(value) else None for name, value in ms.items()}
