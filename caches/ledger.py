"""What a process compiled, tuned, lowered, looked up and ran, as it happened.

Inductor's own counters cannot tell: some are replayed on a cache hit. The ledger
counts calls of the entry points themselves (`ledger_hooks`).
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What happened. The first group is work that a bundle must make needless."""

    LOWERED = "lowered"
    TUNED = "tuned"
    BENCHMARKED = "benchmarked"
    CPP_COMPILED = "cpp_compiled"
    ISA_PROBED = "isa_probed"
    TRITON_COMPILED = "triton_compiled"
    TRITON_TUNED = "triton_tuned"
    COORDINATE_DESCENT = "coordinate_descent"
    FLYDSL_COMPILED = "flydsl_compiled"
    FELL_BACK = "fell_back"
    DYNAMIC = "dynamic"
    UNSEEN = "unseen"
    """Something that the ledger could not watch, so that the rest proves nothing."""

    TRACED = "traced"
    LISTED = "listed"
    TAKEN = "taken"
    TRITON_LOADED = "triton_loaded"
    HEADER = "header"
    COMPILER_QUERY = "compiler_query"


ASIDE = frozenset(
    {
        *(Kind.TRACED, Kind.LISTED, Kind.TAKEN, Kind.TRITON_LOADED),
        *(Kind.HEADER, Kind.COMPILER_QUERY),
    }
)
"""Work that a hit does too, so that it proves nothing; counted apart. With precompiled
entries nothing is traced either."""


@dataclass(frozen=True, slots=True)
class Event:
    """One call of an entry point."""

    kind: Kind
    what: str
    """The graph, list, kernel or command, in a few words."""
    seconds: float = 0.0
    detail: tuple[str, ...] = ()
    """For `tuned`, the hashes of the candidates that had no time; for `taken`, the
    candidate's hash and the key of its inputs."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """One look into a cache of torch's."""

    layer: str
    """"dynamo" (precompiled entries), "aot" (AOTAutograd) or "fx" (Inductor)."""
    state: str
    """"hit", "miss" or "bypass"."""
    key: str
    parts: Mapping[str, str] = field(default_factory=dict)
    """The key's parts, each "hash value"."""
    reason: str = ""
    """Why torch refused to cache, for a bypass."""


class Ledger:
    """The events and lookups of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._lookups: list[Lookup] = []
        self._graphs = 0

    def add(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    def add_lookup(self, lookup: Lookup) -> None:
        with self._lock:
            self._lookups.append(lookup)

    def add_graph(self) -> None:
        """Count a compiled graph that is called for the first time."""
        with self._lock:
            self._graphs += 1

    def note(self, seen: Callable[[], Event | Lookup]) -> None:
        """Add what `seen` returns; where that fails, say so in its place.

        The program that is watched goes on whatever becomes of its ledger.
        """
        try:
            entry = seen()
        except Exception as error:  # of any part of torch that it looks at
            self.unseen(error)
            return
        if isinstance(entry, Lookup):
            self.add_lookup(entry)
        else:
            self.add(entry)

    def unseen(self, error: Exception | str) -> None:
        """Add that something could not be watched."""
        kind = "" if isinstance(error, str) else f"{type(error).__name__}: "
        self.add(Event(Kind.UNSEEN, f"{kind}{error}"))

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(self._events)

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        return tuple(self._lookups)

    def to_json(self) -> dict[str, Any]:
        """Return everything, for the process that asked."""
        return {
            "events": [
                [e.kind, e.what, round(e.seconds, 4), list(e.detail)]
                for e in self._events
            ],
            "lookups": [
                [k.layer, k.state, k.key, dict(k.parts), k.reason]
                for k in self._lookups
            ],
            "graphs": self._graphs,
        }


def read_events(rows: Iterable[Any]) -> tuple[Event, ...]:
    """Read the `events` of `Ledger.to_json`."""
    return tuple(
        Event(Kind(kind), what, seconds, tuple(detail))
        for kind, what, seconds, detail in rows
    )


def read_lookups(rows: Iterable[Any]) -> tuple[Lookup, ...]:
    """Read the `lookups` of `Ledger.to_json`."""
    return tuple(Lookup(*row) for row in rows)


def summary(events: Iterable[Event]) -> dict[str, int]:
    """Return how often each kind happened, in the order of `Kind`; zeros left out."""
    counts = Counter(event.kind for event in events)
    return {str(kind): counts[kind] for kind in Kind if counts[kind]}
