"""A bundle's program served from damaged caches, in processes forked from this one.

Each begins with torch imported and nothing compiled; the import hook looks at the files
as it does where a parent has installed the bundle. `fresh("damaged_loads", REQUEST)`.
"""

import functools
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
from damages import FILE_DAMAGES, one_of_each, what_of
from kills import tree
from processes import answer

from flytune.caches.hook.flytune_hook import Hook
from flytune.caches.hook.flytune_status import Status
from flytune.caches.ledger import ASIDE, read_events
from flytune.caches.prepare import prepare
from flytune.caches.program import ProgramSpec
from flytune.caches.session import run, tolerance

# Those that leave something for Inductor to find.
_DAMAGES = ("cut short", "one bit")
_PATIENCE_S = 300


def served(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each damage of each kind of file, and one for none.

    Args:
        request: `bundle`; `folder`, an empty one; `loads`, a request of
            `flytune.caches.session`; `seed`.
    """
    folder = Path(request["folder"])
    os.environ["FLYTUNE_HOME"] = str(folder / "home")
    os.environ["FLYTUNE_STATUS_DIR"] = ""
    installed = prepare(request["bundle"])
    place = installed.directory
    assert place is not None
    shutil.copytree(place, folder / "kept")
    # Before torch is imported, which looks at some once.
    os.environ.update({c.name: c.value for c in installed.changes if c.value})
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401

    limit = tolerance(ProgramSpec.from_json(request["loads"]["program"]))
    rows = []
    # An empty file cannot be damaged so.
    files = {name: content for name, content in tree(place).items() if content}
    for kind, name in _cases(one_of_each(files)):
        shutil.rmtree(place)
        shutil.copytree(folder / "kept", place)
        if name:
            damage = FILE_DAMAGES[kind]
            damage(place / name, random.Random(f"{request['seed']} {kind} {name}"))
        result = folder / "served.json"
        result.unlink(missing_ok=True)
        serve = functools.partial(_serve, place, request["loads"], result)
        code = forked.run(serve)
        row = {"what": what_of(name) if name else "", "kind": kind, "code": code}
        if code == forked.ENDED:
            row |= _judged(json.loads(result.read_text()), limit, damaged=bool(name))
        rows.append(row)
    return rows


def _cases(names: list[str]) -> Iterator[tuple[str, str]]:
    yield "none", ""
    for kind in _DAMAGES:
        for name in names:
            yield kind, name


def _serve(place: Path, loads: dict[str, Any], result: Path) -> None:
    signal.alarm(_PATIENCE_S)
    status = Status("", installed=str(place))
    Hook(str(place), {}, status, checked=False).start()
    found = run(loads)
    row = {"state": status.state, "code": status.code, "session": found}
    result.write_text(json.dumps(row))


def _judged(row: dict[str, Any], limit: float, *, damaged: bool) -> dict[str, Any]:
    session = row["session"]
    errors = [call[4] for call in session["calls"] if call[4] is not None]
    work = [e for e in read_events(session["ledger"]["events"]) if e.kind not in ASIDE]
    return {
        "state": row["state"],
        "ft": row["code"],
        "work": len(work),
        "right": bool(errors) and all(error <= limit for error in errors),
        # Nothing is to be compiled where nothing is damaged: it would say little else.
        "expected": row["state"] == "damaged" if damaged else not work,
    }


if __name__ == "__main__":
    answer(served)
