"""A bundle as a report sees it: its manifest, and its candidate lists in rows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flytune.caches.bundle import Bundle
from flytune.caches.held import experts_per_token, records_of
from flytune.caches.inspect import words
from flytune.caches.lists import TunedList, calls_of, lists_of
from flytune.caches.manifest import Manifest
from flytune.caches.records import TuningRecord
from flytune.caches.report.work import moved_bytes, operations, tflops
from flytune.caches.several import parts_of
from flytune.shapes.errors import about
from flytune.shapes.gemm import GemmShape

ORDER = ("aten", "triton", "flydsl", "cpp", "decompose_k", "subgraph")
"""Backends in the order in which charts name them; others follow by name."""


@dataclass(frozen=True)
class ReportedList:
    """One candidate list of a bundle."""

    number: int
    """Of the bundle's lists, from 0."""
    tuned: TunedList
    counts: Mapping[str, int]
    """Every module that calls it, at least one, and its calls in a forward pass."""
    labels: tuple[str, ...]
    """The end of each one's name by which it is told from the others."""
    tokens: int
    """Of a forward pass."""

    @cached_property
    def shape(self) -> GemmShape:
        return self.tuned.shape

    @property
    def modules(self) -> tuple[str, ...]:
        """Every module that calls it."""
        return tuple(self.counts)

    @property
    def label(self) -> str:
        """The modules in few words, such as "q_proj +1"."""
        more = len(self.labels) - 1
        return f"{self.labels[0]} +{more}" if more else self.labels[0]

    @property
    def sizes(self) -> str:
        """What its weight is, whatever the tokens."""
        shape = self.shape
        lead = f"{shape.batch}× " if shape.batch > 1 else ""
        lead = f"{shape.groups} × " if shape.groups else lead
        return f"{lead}{shape.n} × {shape.k}"

    @property
    def winner(self) -> TuningRecord | None:
        return self.tuned.winner

    @property
    def us(self) -> float | None:
        """Median time of a call of the winner."""
        return self.winner.median_us if self.winner else None

    @property
    def calls(self) -> int:
        """Calls in a forward pass, by all of its modules."""
        return sum(self.counts.values())

    @property
    def pass_us(self) -> float | None:
        """The winner's time in a whole forward pass."""
        return None if self.us is None else self.us * self.calls

    @cached_property
    def best_us(self) -> Mapping[str, float]:
        """The fastest time of each backend that has one."""
        best: dict[str, float] = {}
        for record in self.tuned.timed():
            assert record.median_us is not None
            best.setdefault(record.backend, record.median_us)
        return best

    def speedup(self, backend: str) -> float | None:
        """Return how many times as fast as a backend's best the winner is."""
        best = self.best_us.get(backend)
        return best / self.us if best and self.us else None

    @property
    def intensity(self) -> float | None:
        """Operations for each byte that has to be moved."""
        moved = moved_bytes(self.shape)
        return operations(self.shape) / moved if moved else None

    @property
    def achieved(self) -> float | None:
        """TFLOP/s of the winner."""
        return tflops(self.shape, self.us) if self.us else None


@dataclass(frozen=True)
class ReportedBundle:
    """One bundle of a report."""

    number: int
    """Of the report's bundles, from 0."""
    bundle: Bundle
    name: str
    """What the report calls it."""
    lists: tuple[ReportedList, ...]

    @property
    def manifest(self) -> Manifest:
        return self.bundle.manifest

    @property
    def model(self) -> str:
        """The name of the model, or of the bundle where it is of none."""
        return words(self.manifest.model.get("name") or self.name)

    @property
    def device(self) -> str:
        """What it is for."""
        hardware = self.manifest.target["hardware"]
        return words(hardware.get("product") or hardware.get("kind") or "unknown")

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """The token counts of its lists, ascending."""
        return tuple(sorted({one.tokens for one in self.lists}))

    @cached_property
    def backends(self) -> tuple[str, ...]:
        """The backends that its lists offer, in the order of charts."""
        return in_order(r.backend for one in self.lists for r in one.tuned.records)

    @property
    def has_times(self) -> bool:
        """Whether any winner has a time."""
        return any(one.us for one in self.lists)

    @property
    def decided(self) -> bool:
        """Whether any list has a winner."""
        return any(one.winner for one in self.lists)


def in_order(backends: Iterable[str]) -> tuple[str, ...]:
    """Return backends in the order of charts, each once."""

    def place(backend: str) -> tuple[int, str]:
        known = backend in ORDER
        return (ORDER.index(backend) if known else len(ORDER), backend)

    return tuple(sorted(set(backends), key=place))


def read_bundles(bundles: Sequence[Bundle]) -> tuple[ReportedBundle, ...]:
    """Read the records of bundles, checked by their digests.

    Raises:
        FlytuneError: one has no records, breaks a rule of the format, or its merged
            program is malformed.
    """
    names = _names([bundle.path.name for bundle in bundles])
    return tuple(
        ReportedBundle(number, bundle, name, _lists(bundle))
        for number, (bundle, name) in enumerate(zip(bundles, names, strict=True))
    )


def _names(files: Sequence[str]) -> Iterator[str]:
    """Yield what to call each bundle: its file, with a number where two share one."""
    again = Counter(files)
    seen: Counter[str] = Counter()
    for file in files:
        seen[file] += 1
        short = file.removesuffix(".tar.zst")
        yield f"{short} ({seen[file]})" if again[file] > 1 else short


def _lists(bundle: Bundle) -> tuple[ReportedList, ...]:
    with about(bundle.path):
        found = lists_of(records_of(bundle))
    counts = [_counts(one, bundle.manifest) for one in found]
    labels = short_names(name for some in counts for name in some)
    rows = {one.shape.m for one in found if one.shape.op == "grouped_mm"}
    each = experts_per_token(_planned_tokens(bundle.manifest), rows)
    return tuple(
        ReportedList(
            number, one, some, tuple(labels[n] for n in some), _tokens(one, each)
        )
        for number, (one, some) in enumerate(zip(found, counts, strict=True))
    )


def _planned_tokens(manifest: Manifest) -> set[int]:
    stated = [part["policy"].get("tokens") or () for part in parts_of(manifest)]
    return {count for some in stated for count in some if type(count) is int}


def _tokens(one: TunedList, experts: int | None) -> int:
    grouped = one.shape.op == "grouped_mm" and experts
    return one.shape.m // experts if grouped and experts else one.shape.m


def _counts(one: TunedList, manifest: Manifest) -> dict[str, int]:
    """Return the calls of each module; a list of none that is known has its shape."""
    calls = calls_of(one, manifest)
    return {module or str(one.shape): count for module, count in calls.items()}


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return of each module's path the end by which it is told from the others."""
    paths = {name: name.split(".") for name in names}
    length = dict.fromkeys(paths, 1)
    while True:
        short = {name: ".".join(paths[name][-length[name] :]) for name in paths}
        shared = Counter(short.values())
        longer = [
            name
            for name, end in short.items()
            if shared[end] > 1 and length[name] < len(paths[name])
        ]
        if not longer:
            return short
        for name in longer:
            length[name] += 1


def stated(value: Any, kind: type) -> Any:
    """Return a value of a manifest's free part if it is of a type, else that's empty.

    What a bundle's own mappings hold is checked by no rule of the format.
    """
    return value if isinstance(value, kind) else kind()
