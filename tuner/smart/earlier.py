"""What is known before a build has timed anything: the times of others."""

import functools
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from flytune.caches.device_profile import DeviceProfile
from flytune.caches.records import TuningRecord, read_records
from flytune.shapes.errors import FlytuneError
from flytune.tuner.journal import read_entries
from flytune.tuner.smart.cost_model import Observed, is_observed
from flytune.tuner.smart.limits import Limits

MEASURED = "h200.parquet"
"""Every candidate of the exhaustive lists of 13 shapes, timed on an H200."""
_MEASURED_ON = "h200.json"
JOURNAL = "journal.jsonl"
DEVICE = "device"
"""The kind of a journal's entry that names the device."""
_MOST_JOURNALS = 20
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
    journals = [p for p in work.glob(f"*/{JOURNAL}") if p.parent != own]
    journals.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in journals[:_MOST_JOURNALS]:
        yield from _of_journal(path, device)


def _of_journal(path: Path, device: str) -> Iterator[TuningRecord]:
    entries = list(read_entries(path))
    if not any(e["kind"] == DEVICE and e.get("name") == device for e in entries):
        return
    latest: dict[object, TuningRecord] = {}
    for entry in entries:
        if entry["kind"] not in _KINDS:
            continue
        try:
            record = TuningRecord.from_row(entry["row"])
            latest[entry["list"], record.choice_hash] = record
        except (FlytuneError, KeyError, TypeError):
            # Of another version, which its own build says.
            continue
    yield from filter(is_observed, latest.values())
