"""What became of a bundle in a process, or of an installed directory, in words."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.bundle import Bundle
from flytune.caches.codes import EXPLAINED, Code
from flytune.caches.home import status_directory
from flytune.caches.hook.flytune_files import DAMAGED, damaged, read_marker
from flytune.caches.hook.flytune_status import alive
from flytune.shapes.errors import FlytuneError

_STATES = {
    "hit": "serves from the bundle",
    "damaged": "serves from the bundle, but for what is set aside",
    "miss": "serves without the bundle, which is for something else",
    "disabled": "serves without the bundle, which is switched off",
    "error": "serves without the bundle, which cannot be used",
}


def processes() -> tuple[Mapping[str, Any], ...]:
    """Return the row of each process that is known, the last written last.

    A row is what `flytune_status.Status.row` makes, with `alive`, and of its code
    `meaning` and `action`.
    """
    folder = status_directory()
    rows = []
    for path in Path(folder).glob("*.json") if folder else ():
        if (row := _read(path)) is not None:
            rows.append((path.stat().st_mtime_ns, row))
    return tuple(row for _, row in sorted(rows, key=lambda one: one[0]))


def of_process(pid: int) -> Mapping[str, Any]:
    """Return the row of a process, or of the nearest that it descends from.

    Raises:
        FlytuneError: none is known.
    """
    known = {row.get("pid"): row for row in processes()}
    for one in _line_of(pid):
        if one in known:
            return known[one]
    raise FlytuneError(
        f"no bundle was installed for the process: {pid}",
        hint=f"status files lie in: {status_directory() or 'no directory'}",
    )


def of_directory(directory: Path) -> Mapping[str, Any]:
    """Return a row like that of a process for an installed directory.

    Raises:
        FlytuneError: it is none.
    """
    manifest = Bundle.open(directory).manifest
    marker = read_marker(str(directory))
    row: dict[str, Any] = {
        "directory": str(directory),
        "bundle": marker.get("bundle", ""),
        "model": manifest.model.get("name"),
        "state": "hit",
        "code": "",
        "reason": "",
        "files": {},
    }
    if not marker:
        return _explained(
            {**row, "state": "error", "code": Code.BOOKKEEPING, "reason": "no marker"}
        )
    found = damaged(str(directory), marker["files"], read=True)
    aside = sorted((directory / DAMAGED).rglob("*"))
    names = [*found, *(path.name.replace("__", "/") for path in aside)]
    if names:
        reason = f"{len(names)} damaged files: {names[0]}"
        row |= {"state": "damaged", "code": Code.SET_ASIDE, "reason": reason}
        row["files"] = {"damaged": len(found), "set_aside": len(aside)}
    return _explained(row)


def describe(row: Mapping[str, Any]) -> str:
    """Return a row in words, a fact a line."""
    lines = [
        ("process", _process(row)),
        ("bundle", f"sha256:{row['bundle']}" if row.get("bundle") else ""),
        ("directory", row.get("directory")),
        ("state", f"{row['state']}: {_STATES.get(row['state'], 'unknown')}"),
        ("why", row.get("reason")),
        ("code", f"{row['code']}: {row['meaning']}" if row.get("code") else ""),
        ("do", row.get("action")),
        ("files", _counts(row.get("files"))),
        ("graphs", _counts(row.get("graphs"))),
        ("errors", _counts(row.get("errors"))),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in lines if text)


def _process(row: Mapping[str, Any]) -> str:
    if "pid" not in row:
        return ""
    state = "running" if row["alive"] else "ended"
    return f"{row['pid']} on {row.get('host')}, {state}: {row.get('command')}"


def _counts(counts: Mapping[str, int] | None) -> str:
    return ", ".join(f"{number} {name}" for name, number in (counts or {}).items())


def _read(path: Path) -> dict[str, Any] | None:
    """Return a status file's row; None of what is none, or of another's."""
    try:
        row = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or "pid" not in row or "state" not in row:
        return None
    return _explained({**row, "alive": alive(path.stem)})


def _explained(row: dict[str, Any]) -> dict[str, Any]:
    known = {str(code): explained for code, explained in EXPLAINED.items()}
    meaning, action = known.get(str(row.get("code")), ("", ""))
    return {**row, "meaning": meaning, "action": action}


def _line_of(pid: int) -> Iterator[int]:
    """Yield a process and those that it descends from, as far as they run."""
    while pid > 1:
        yield pid
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            # The second field, a name in brackets, may hold anything.
            pid = int(text.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return
