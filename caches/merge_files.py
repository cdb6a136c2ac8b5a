"""Files of several bundles as one: where a path has other contents, by kind.

| kind | what becomes of it | why |
| --- | --- | --- |
| records, keys, asked kernels | joined | rows that say the same of different things |
| timings | joined list by list; of one list the newest times | a list is timed as a |
| | | whole: times of two runs side by side could make a third choice |
| lists of Triton's files | written anew | they differ by absolute paths alone |
| Dynamo's entries | refused | torch reads one file a function, and two cannot be one |
| all others | the newest bundle's | named by a key, so that any of them serves |
"""

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flytune.caches.bundle import Bundle
from flytune.caches.codes import Code
from flytune.caches.expected import CACHES
from flytune.caches.inductor import stored_timings
from flytune.caches.keys import KEYS_NAME, read_keys, write_keys
from flytune.caches.manifest import FileEntry, canonical_json
from flytune.caches.packing import file_entry
from flytune.caches.records import RECORDS_NAME, read_records, write_records
from flytune.caches.triton_cache import is_group, relocated_group
from flytune.caches.verify_kernels import ASKED_NAME
from flytune.shapes.errors import FlytuneError

_TIMINGS = f"{CACHES}/cache/"
_DYNAMO = f"{CACHES}/dynamo/"


@dataclass(frozen=True, slots=True)
class Source:
    """A bundle and its unpacked files."""

    bundle: Bundle
    placed: Path

    @property
    def name(self) -> str:
        """What a person knows it by, wherever it lies."""
        return f"{self.bundle.path.name} ({self.bundle.digest[:12]})"


def join_files(
    sources: Sequence[Source], staging: Path
) -> tuple[dict[str, FileEntry], tuple[str, ...]]:
    """Write every file of all sources into a directory.

    Args:
        sources: Oldest first.

    Returns:
        What was written, and the conflicts, a line each: what was kept of a path with
        several contents.

    Raises:
        FlytuneError: a conflict cannot be solved, or a file is corrupt.
    """
    files: dict[str, FileEntry] = {}
    conflicts: list[str] = []
    for path in sorted({path for s in sources for path in s.bundle.manifest.files}):
        holders = [s for s in sources if path in s.bundle.manifest.files]
        target = staging / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if len({s.bundle.manifest.files[path] for s in holders}) == 1:
            shutil.copyfile(holders[-1].placed / path, target)
            files[path] = holders[-1].bundle.manifest.files[path]
        else:
            conflicts += _join(path, holders, target)
            files[path] = file_entry(target)
    return files, tuple(conflicts)


def _join(path: str, holders: Sequence[Source], target: Path) -> list[str]:
    files = [source.placed / path for source in holders]
    if path == RECORDS_NAME:
        records = (record for file in files for record in read_records(file))
        write_records(_last_of_each(records), target)
    elif path == KEYS_NAME:
        graphs = {key.key: key for file in files for key in read_keys(file)}
        write_keys((graphs[key] for key in sorted(graphs)), target)
    elif path == ASKED_NAME:
        asked = [row for file in files for row in _json(file)]
        distinct = {canonical_json(row): row for row in asked}
        target.write_text(
            json.dumps([distinct[key] for key in sorted(distinct)]) + "\n"
        )
    elif path.startswith(_TIMINGS):
        return _join_timings(holders, path, target)
    elif path.startswith(_DYNAMO):
        raise FlytuneError(
            f"two bundles hold Dynamo's entry of one function: {path}: "
            f"{holders[0].name} and {holders[-1].name}",
            hint="build one bundle with the token counts of both",
            code=Code.UNMERGED,
        )
    else:
        shutil.copyfile(files[-1], target)
        if not (is_group(target) and len(set(map(_group, files))) == 1):
            return [f"{path}: kept that of {holders[-1].name}"]
    return []


def _last_of_each(rows: Iterable[Any]) -> tuple[Any, ...]:
    """Return each row once, where it appeared last: the latest row of a kind counts."""
    found: dict[bytes, Any] = {}
    for row in rows:
        key = canonical_json(row.to_row())
        found.pop(key, None)
        found[key] = row
    return tuple(found.values())


def _group(path: Path) -> bytes:
    """Return a list of Triton's files as it is for any place."""
    names = [Path(child).name for child in _json(path)["child_paths"].values()]
    return relocated_group(Path(path.name), names)


def _join_timings(holders: Sequence[Source], path: str, target: Path) -> list[str]:
    """Join timings: op -> key of the inputs -> precision -> choice -> milliseconds."""
    conflicts = []
    whole: dict[str, Any] = {}
    for source in holders:
        row = _json(source.placed / path)
        cache = whole.setdefault("cache", {})
        whole["system"] = row.get("system")
        for op, inputs, precision, times in stored_timings(row, path):
            lists = cache.setdefault(op, {}).setdefault(inputs, {})
            older = lists.get(precision)
            if older is not None and older != times:
                conflicts.append(
                    f"times of {op} {inputs}: kept those of {source.name}, "
                    f"{_choice(older, times)}"
                )
            # Serving's own list may be the longer one: a candidate without a time
            # would make Inductor time all again.
            unknown = dict.fromkeys(older or (), math.inf)
            lists[precision] = {**unknown, **times}
    target.write_text(json.dumps(whole, indent=1))
    return conflicts


def _choice(older: Mapping[str, float], newer: Mapping[str, float]) -> str:
    was, now = (min(times, key=lambda c: times[c]) for times in (older, newer))
    return "the same choice" if was == now else f"which choose {now} and not {was}"


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FlytuneError(
            f"file of bundle cannot be read: {path.name}", code=Code.UNREADABLE
        ) from error
