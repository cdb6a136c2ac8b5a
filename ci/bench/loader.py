"""Processes that install one bundle at once into an empty home, then serve from it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kills import tree
from processes import answer, threads

from flytune.caches.child import plain_environment
from flytune.caches.hook.flytune_files import may_change
from flytune.caches.ledger import ASIDE, read_events

# What one process takes while it loads, and what is left to others.
_LOAD_GIB, _SPARED_GIB = 1.0, 2.0


def at_once(
    bundle: Path,
    home: Path,
    count: int,
    *,
    loads: Mapping[str, Any] | None = None,
    serve: int = 0,
    slots: int = 1,
) -> list[dict[str, Any]]:
    """Return what became of each process.

    They are told to begin when all are up. What each loads takes memory that may not
    suffice for all: so many do it at a time.

    Args:
        home: FLYTUNE_HOME, which nothing is installed in.
        loads: a request of `flytune.caches.session`.
        serve: how many of them load, too; the others only install.
        slots: how many may load at a time.
    """
    begin, go = os.pipe()
    free, taken = os.pipe()
    os.write(taken, b"." * slots)
    env = {**plain_environment(), "FLYTUNE_HOME": str(home)}
    with tempfile.TemporaryDirectory(prefix="flytune-loaders-") as directory:
        row = {"bundle": str(bundle), "loads": None, "pipes": [begin, free, taken]}
        requests = [Path(directory) / name for name in ("installs.json", "serves.json")]
        requests[0].write_text(json.dumps(row))
        requests[1].write_text(json.dumps({**row, "loads": loads}))
        results = [Path(directory) / f"{number}.json" for number in range(count)]
        running = [
            subprocess.Popen(
                [sys.executable, __file__, str(requests[number < serve]), str(result)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(begin, free, taken),
            )
            for number, result in enumerate(results)
        ]
        for process in running:
            assert process.stdout is not None
            # It is up, with all imported that an installation needs.
            process.stdout.read(1)
        os.write(go, b"." * count)
        codes = [process.wait() for process in running]
        for process in running:
            assert process.stdout is not None
            process.stdout.close()
        for descriptor in (begin, go, free, taken):
            os.close(descriptor)
        return [
            json.loads(result.read_text()) if code == 0 else {"exit": code}
            for code, result in zip(codes, results, strict=True)
        ]


def of_loaders(rows: list[dict[str, Any]], limit: float) -> dict[str, Any]:
    """Return what became of processes that installed, and served, at once."""
    sessions = [row["session"] for row in rows if "session" in row]
    errors = [c[4] for s in sessions for c in s["calls"] if c[4] is not None]
    work = [
        event
        for session in sessions
        for event in read_events(session["ledger"]["events"])
        if event.kind not in ASIDE
    ]
    hits = [row for row in rows if row.get("status") == "hit"]
    return {
        "loaders": len(rows),
        "hits": len(hits),
        "misses": sum(row.get("status") == "miss" for row in rows),
        "failed": sum("exit" in row or row.get("status") == "error" for row in rows),
        "mended": sum(row["mended"] + row["set_aside"] for row in hits),
        "served": len(sessions),
        "calls": len(errors),
        "work": len(work),
        "wrong": sum(not error <= limit for error in errors),
        "install_s": max((row["install_s"] for row in hits), default=0.0),
    }


def unlike_files(bundle: Path, place: Path) -> list[str]:
    """Return the installed files that are not the bundle's; timings may grow."""
    there = tree(place)
    return [
        name
        for name, content in tree(bundle).items()
        if name.startswith("inductor/") and there.get(name) != content
        if not may_change(name)
    ]


def loads_that_fit() -> int:
    """Return how many processes may load at a time, by cores and by free memory."""
    free_gib = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return max(min(4 * threads(), int((free_gib - _SPARED_GIB) / _LOAD_GIB)), 1)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Be one of them."""
    import flytune.caches.session as session
    from flytune.caches.install import attempt

    begin, free, taken = request["pipes"]
    sys.stdout.write(".")
    sys.stdout.flush()
    os.read(begin, 1)
    start = time.monotonic()
    installed = attempt(request["bundle"])
    row: dict[str, Any] = {
        "status": str(installed.status),
        "mended": len(installed.mended),
        "set_aside": len(installed.set_aside),
        "install_s": time.monotonic() - start,
    }
    if request["loads"] is None:
        return row
    slot = os.read(free, 1)
    start = time.monotonic()
    result = session.run(request["loads"])
    os.write(taken, slot)
    return {**row, "load_s": time.monotonic() - start, "session": result}


if __name__ == "__main__":
    answer(run)
