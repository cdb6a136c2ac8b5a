"""What earlier builds on a device have left in their journals of what they took."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flytune.caches.records import TuningRecord
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import ATEN
from flytune.tuner.estimate import Amounts, Spent
from flytune.tuner.journal import DEVICE, JOURNAL, newest_journals, read_entries

SPENT = "spent"
"""The kind of the entry that says what a build took."""
LISTED = "listed"
"""The kind of the entry that says how many lists and candidates a build has."""
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(slots=True)
class Past:
    """What the journals of a work directory tell of one device."""

    spent: list[Spent] = field(default_factory=list)
    """The newest first."""
    library: list[TuningRecord] = field(default_factory=list)
    """Times of the library's kernels."""
    ceilings: Mapping[str, Any] = field(default_factory=dict)
    """As `measure_ceilings`, where any build has measured them."""
    listed: Mapping[str, tuple[int, int, float]] = field(default_factory=dict)
    """What this very build has listed, as `listed_row`; nothing if it has not yet."""
    decided: set[str] = field(default_factory=set)
    """The lists that it has decided, by `list_id`."""


def read_past(work: Path, own: Path, device: str) -> Past:
    """Return what builds on a device took; what cannot be read tells nothing.

    Args:
        work: Holds the builds' own directories.
        own: That of the build that asks, which tells of itself too.
        device: Its product's name.
    """
    past = Past()
    for path in (own / JOURNAL, *newest_journals(work, own)):
        _read(path, device, past, own=path.parent == own)
    return past


def _read(path: Path, device: str, past: Past, *, own: bool) -> None:
    spent: list[Spent] = []
    is_of_device = False
    for entry in read_entries(path, _tells if not own else _is_of_no_wave):
        kind = entry["kind"]
        if kind == DEVICE:
            is_of_device = entry.get("name") == device
        # What another version wrote tells this one nothing.
        with contextlib.suppress(FlytuneError, *_MALFORMED):
            if own and kind == LISTED:
                past.listed = {
                    str(name): (int(compiled), int(length), float(us))
                    for name, (compiled, length, us) in entry["lists"].items()
                }
            elif own and kind == "record":
                past.decided.add(entry["list"])
            if not is_of_device:
                continue
            if kind == SPENT:
                spent.append(_spent(entry))
            elif kind == "ceilings" and not past.ceilings:
                past.ceilings = dict(entry["row"])
            past.library.extend(_library(entry))
    past.spent.extend(reversed(spent))


def _library(entry: Mapping[str, Any]) -> Iterator[TuningRecord]:
    if entry["kind"] == "record":
        row = entry["row"]
        if row["backend"] == ATEN and row.get("median_us") is not None:
            yield TuningRecord.from_row(row)


def _is_of_no_wave(line: bytes) -> bool:
    return not line.startswith(b'{"kind": "tried"')


def _tells(line: bytes) -> bool:
    """Whether a line is of use to other builds: most are of candidates."""
    if line.startswith(b'{"kind": "record"'):
        return f'"backend": "{ATEN}"'.encode() in line
    return _is_of_no_wave(line)


def _spent(entry: Mapping[str, Any]) -> Spent:
    numbers = {name: float(entry[name]) for name in ("compile_s", "device_s", "load")}
    stages = {str(name): float(seconds) for name, seconds in entry["stages"].items()}
    return Spent(str(entry["key"]), Amounts(**entry["amounts"]), stages, **numbers)


def spent_row(one: Spent) -> dict[str, Any]:
    """Return the journal's entry of what a build took."""
    return {**asdict(one), "stages": dict(one.stages)}
