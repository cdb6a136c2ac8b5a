"""The two bundles that are compared, and the lists that they have in common."""

import functools
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flytune.caches.bundle import Bundle
from flytune.caches.expected import CACHES
from flytune.caches.lists import TunedList, calls_of, lists_of
from flytune.caches.manifest import Manifest
from flytune.caches.records import RECORDS_NAME, read_records
from flytune.caches.regression.kernels import SOFTWARE
from flytune.caches.words import plain
from flytune.shapes.errors import FlytuneError, about

_TIMINGS = f"{CACHES}/cache/"


@dataclass(frozen=True, slots=True)
class Side:
    """One bundle, as far as it is read."""

    bundle: Bundle
    lists: tuple[TunedList, ...]
    timings: tuple[Mapping[str, Any], ...]
    """Inductor's timings files, as they are parsed; of a bundle that was baked."""

    @classmethod
    def open(cls, path: Path | str) -> "Side":
        """Read a bundle's manifest, records and timings, and check every file.

        Raises:
            FlytuneError: it has no records, or a file breaks a rule of the bundle; the
                message names the bundle, for there are two.
        """
        with about(path):
            return cls._open(path)

    @classmethod
    def _open(cls, path: Path | str) -> "Side":
        bundle = Bundle.open(path)
        files = bundle.manifest.files
        if RECORDS_NAME not in files:
            raise FlytuneError(f"bundle has no records: {bundle.path}")
        names = sorted(name for name in files if name.startswith(_TIMINGS))
        with tempfile.TemporaryDirectory(prefix="flytune-check-") as directory:
            placed = Path(directory) / "bundle"
            bundle.place(placed, only=[RECORDS_NAME, *names])
            timings = tuple(_parsed(placed / name) for name in names)
            return cls(bundle, lists_of(read_records(placed / RECORDS_NAME)), timings)

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self.bundle.manifest

    def software(self, name: str) -> Any:
        """Return a part of the target's software; None where it is not known."""
        return self.manifest.target["software"].get(name)

    def hardware(self, name: str) -> Any:
        """Return a part of the target's hardware; None where it is not known."""
        return self.manifest.target["hardware"].get(name)

    def calls(self, one: TunedList) -> int:
        """Return how often a forward pass calls a list, by all of its modules."""
        return sum(calls_of(one, self.manifest).values())


class Pair(NamedTuple):
    """A list that both bundles have."""

    old: TunedList
    new: TunedList
    calls: tuple[int, int]
    """Of each in a forward pass of its bundle's model."""

    @property
    def name(self) -> str:
        """The list's name, as the tables print it."""
        return plain(self.new.name)


@dataclass(frozen=True, slots=True)
class Sides:
    """Two bundles, list by list."""

    old: Side
    new: Side
    pairs: tuple[Pair, ...]
    lost: tuple[TunedList, ...]
    added: tuple[TunedList, ...]

    @classmethod
    def of(cls, new: Side, old: Side) -> "Sides":
        """Match the lists of two bundles by what they compute and who calls them."""
        waiting: dict[tuple[Any, ...], list[TunedList]] = {}
        for one in new.lists:
            waiting.setdefault(one.identity, []).append(one)
        pairs, lost = [], []
        for one in old.lists:
            same = waiting.get(one.identity)
            if not same:
                lost.append(one)
                continue
            # Lists of one identity differ in their candidates.
            new_one = max(same, key=functools.partial(_shared, one))
            # Not `remove`, which compares records and not lists.
            same[:] = [other for other in same if other is not new_one]
            calls = old.calls(one), new.calls(new_one)
            pairs.append(Pair(one, new_one, calls))
        left = {id(one) for some in waiting.values() for one in some}
        added = tuple(one for one in new.lists if id(one) in left)
        return cls(old, new, tuple(pairs), tuple(lost), added)

    @property
    def same_software(self) -> bool:
        """Whether the software that makes kernels is the same, part by part."""
        return all(self.old.software(n) == self.new.software(n) for n in SOFTWARE)


def _shared(one: TunedList, other: TunedList) -> int:
    """Return how many candidates Inductor names alike in two lists."""
    names = {record.choice_hash for record in one.records}
    return len(names & {record.choice_hash for record in other.records})


def names_of(lists: Iterable[TunedList]) -> Iterator[str]:
    """Yield the names of lists, each once."""
    yield from dict.fromkeys(plain(one.name) for one in lists)


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        row = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FlytuneError(f"timings file is not JSON: {path.name}") from error
    if not isinstance(row, dict) or not isinstance(row.get("cache"), dict):
        raise FlytuneError(f"timings file has no timings: {path.name}")
    return row
