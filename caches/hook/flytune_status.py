"""What became of a bundle in this process, in two small files that others read.

`NAME.json` is for `flytune why`, and `NAME.prom` for the textfile collector of
Prometheus' node exporter, which is gone when the process ends. A process that cannot
write them does without, and says nothing: its place may be read-only.

Standard library alone, and nothing newer than Python 3.10: as the hook.
"""

import atexit
import contextlib
import json
import os
import socket
import sys
import time
import zlib
from collections.abc import Mapping
from typing import Any

STATUS_VARIABLE = "FLYTUNE_STATUS_DIR"
"""Where the files lie; empty for none."""
HIT, DAMAGED, MISS, DISABLED, ERROR = "hit", "damaged", "miss", "disabled", "error"
STATES = (HIT, DAMAGED, MISS, DISABLED, ERROR)
"""Damaged: it serves, but for files that were set aside."""
SERVING = (HIT, DAMAGED)
_KEPT_OF_THE_DEAD = 32
_METRICS = (
    ("flytune_bundle_info", "gauge", "The bundle of a process and what became of it."),
    ("flytune_bundle_hit", "gauge", "1 where a process serves from its bundle."),
    ("flytune_files", "gauge", "Installed files by what was done to them."),
    ("flytune_graphs", "gauge", "Inductor's lookups of graphs by their result."),
    ("flytune_errors_total", "counter", "What went wrong, by its code."),
)


class Status:
    """What became of the bundle of this process.

    Args:
        directory: where the files are written; empty for nowhere.
        bundle: the bundle's digest, as far as it is known.
        installed: the directory that it is served from, if any.
    """

    def __init__(self, directory: str, bundle: str = "", installed: str = "") -> None:
        self.directory = directory
        self.state = HIT
        self.code = ""
        self.reason = ""
        self.parts: list[Mapping[str, Any]] = []
        self.files: dict[str, int] = {}
        self.graphs: dict[str, int] = {}
        self.errors: dict[str, int] = {}
        self.bundle = bundle
        self.installed = installed
        self._written = ""

    def fail(
        self, state: str, code: str, reason: str, *parts: Mapping[str, Any] | None
    ) -> None:
        """Take a state that has a reason, and count its code.

        Args:
            parts: of the target, that differ: `part`, `built` and `live`.
        """
        self.state, self.code, self.reason = state, code, reason
        self.parts = [part for part in parts if part is not None]
        self.count(code)

    def set_aside(self, files: int, code: str) -> None:
        """Count files that nothing loads any more; the others serve."""
        self.state, self.code = DAMAGED, code
        self.reason = f"{files} damaged files are set aside"
        self.files["set_aside"] = self.files.get("set_aside", 0) + files
        self.count(code)

    def count(self, code: str) -> None:
        """Count what went wrong."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def resume(self) -> None:
        """Go on from what this very process said before it became another program."""
        path = os.path.join(self.directory, f"{name_of(os.getpid())}.json")
        try:
            with open(path, encoding="utf-8") as file:
                row = json.load(file)
            if row["state"] in SERVING and row["directory"] == self.installed:
                self.state, self.code = row["state"], row["code"]
                self.reason, self.files = row["reason"], row["files"]
                self.errors = row["errors"]
        except (OSError, ValueError, LookupError, TypeError):
            return

    def write(self) -> None:
        """Write both files, each whole or not at all; do without where it cannot be."""
        if not self.directory:
            return
        name = name_of(os.getpid())
        try:
            if name != self._written:
                os.makedirs(self.directory, mode=0o700, exist_ok=True)
                sweep(self.directory)
                atexit.register(self._end, os.getpid())
            self._written = name
            path = os.path.join(self.directory, name)
            _write(f"{path}.json", json.dumps(self.row(), sort_keys=True) + "\n")
            _write(f"{path}.prom", self.metrics())
        # Whatever fails here, the program has nothing to do with it.
        except Exception:
            self.directory = ""

    def row(self) -> dict[str, Any]:
        """Return the JSON file's row."""
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": sys.argv[0] if sys.argv else "",
            "python": sys.executable,
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "bundle": self.bundle,
            "directory": self.installed,
            "state": self.state,
            "code": self.code,
            "reason": self.reason,
            "parts": self.parts,
            "files": self.files,
            "graphs": self.graphs,
            "errors": self.errors,
        }

    def metrics(self) -> str:
        """Return the Prometheus file's text."""
        pid = f'pid="{os.getpid()}"'
        info = f'{pid},bundle="{self.bundle}",state="{self.state}",code="{self.code}"'
        samples: list[list[tuple[str, int]]] = [
            [(info, 1)],
            [(pid, int(self.state in SERVING))],
            [(f'{pid},done="{name}"', n) for name, n in self.files.items()],
            [(f'{pid},result="{name}"', n) for name, n in self.graphs.items()],
            [(f'{pid},code="{name}"', n) for name, n in self.errors.items()],
        ]
        lines = []
        for (name, kind, text), rows in zip(_METRICS, samples, strict=True):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{labels}}} {value}" for labels, value in rows]
        return "\n".join(lines) + "\n"

    def _end(self, pid: int) -> None:
        # A forked child ends too, and the file is its parent's.
        if pid == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.directory, f"{self._written}.prom"))


def name_of(pid: int) -> str:
    """Return how the files of a process are named, which no other process shares.

    A process number comes again after a while, in another container and on another
    host: with it go the time of its start, and a number of the host and container.
    """
    return f"{pid}-{_started(pid)}-{_here()}"


def alive(name: str) -> bool:
    """Whether the process of a file's name runs; of other containers nobody knows."""
    pid, _, rest = name.partition("-")
    started, _, where = rest.partition("-")
    return where != _here() or (pid.isdecimal() and started == _started(int(pid)))


def sweep(directory: str) -> None:
    """Remove what processes left that are gone, but their last rows."""
    for path in left_over(directory):
        with contextlib.suppress(OSError):
            os.unlink(path)


def left_over(directory: str) -> list[str]:
    """Return the files of processes that are gone, but the last rows of them."""
    dead = []
    for entry in os.scandir(directory):
        name, ending = os.path.splitext(entry.name)
        if ending in (".json", ".prom", ".part") and not alive(_plain(name)):
            with contextlib.suppress(OSError):
                dead.append((entry.stat().st_mtime, entry.path))
    rows = sorted(one for one in dead if one[1].endswith(".json"))
    kept = {path for _, path in rows[max(len(rows) - _KEPT_OF_THE_DEAD, 0) :]}
    return sorted(path for _, path in dead if path not in kept)


def _plain(name: str) -> str:
    """Return a file's name without what marks it as not whole."""
    return name[1:].partition(".")[0] if name.startswith(".") else name


def _write(path: str, text: str) -> None:
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name}.part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(part, path)


def _started(pid: int) -> str:
    """Return when a process started, in ticks since the boot; empty of none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The second field, a name in brackets, may hold anything.
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _here() -> str:
    """Return a number of this boot of this host and this container's processes."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            text = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:
        text = socket.gethostname()
    return f"{zlib.crc32(text.encode()):08x}"
