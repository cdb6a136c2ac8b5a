"""What is known before a build has timed anything: the times of others."""

import contextlib
import functools
import itertools
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from flytune.caches.device_profile import DeviceProfile
from flytune.caches.records import TuningRecord, read_records
from flytune.shapes.errors import FlytuneError
from flytune.tuner.journal import DEVICE, newest_journals, read_entries
from flytune.tuner.smart.cost_model import Observed, is_observed
from flytune.tuner.smart.limits import Limits

MEASURED = "h200.parquet"
"""Every candidate of the exhaustive lists of 13 shapes, timed on an H200."""
_MEASURED_ON = "h200.json"
_MOST_RECORDS = 50_000
_KINDS = frozenset({"record", "tried"})


@functools.cache
def measured() -> tuple[Observed, ...]:
    """Return the times that come with flytune."""
    folder = resources.files("flytune.tuner.smart")
    with resources.as_file(folder / MEASURED) as path:
        records = read_records(path)
    profiles = resources.files("flytune.caches") / "profiles"
    text = (profiles / _MEASURED_ON).read_text()
    limits = Limits.of(DeviceProfile.from_json(json.loads(text)))
    return tuple(Observed(record, limits) for record in records)


def earlier_builds(work: Path, own: Path, device: str) -> Iterator[TuningRecord]:
    """Yield what other builds in a work directory have timed on such a device.

    Args:
        work: Holds the builds' own directories.
        own: The directory of the build that asks.
        device: Its product's name.
    """
    journals = newest_journals(work, own)
    known = (r for path in journals for r in _of_journal(path, device))
    yield from itertools.islice(known, _MOST_RECORDS)


def _of_journal(path: Path, device: str) -> Iterator[TuningRecord]:
    latest: dict[object, TuningRecord] = {}
    is_of_device = False
    for entry in read_entries(path):
        if entry["kind"] == DEVICE:
            is_of_device = entry.get("name") == device
        if not is_of_device or entry["kind"] not in _KINDS:
            continue
        # What another version wrote its own build passes over, and says so.
        with contextlib.suppress(FlytuneError, KeyError, TypeError, AttributeError):
            for row in entry.get("rows") or [entry["row"]]:
                if row.get("median_us") is not None:
                    record = TuningRecord.from_row(row)
                    latest[entry["list"], record.choice_hash] = record
    yield from filter(is_observed, latest.values())
