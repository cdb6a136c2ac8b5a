"""The processes of a benchmark: fresh ones, asked by a file and answering by a file."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.child import die_with_parent, plain_environment, run_module

HERE = Path(__file__).parent


def threads() -> int:
    """Return the cores of this process, which a policy names as its threads."""
    return len(os.sched_getaffinity(0))


def fresh(
    module: str,
    request: Mapping[str, Any],
    env: Mapping[str, str] | None = None,
    *,
    what: str,
) -> Any:
    """Run a module, of ours or of this folder, in a fresh process; return its result.

    Raises:
        FlytuneError: the process failed.
    """
    given = dict(plain_environment() if env is None else env)
    paths = [str(HERE), *filter(None, [given.get("PYTHONPATH")])]
    given["PYTHONPATH"] = os.pathsep.join(paths)
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        result = Path(directory) / "result.json"
        run_module(module, request, result, given, what=what)
        return json.loads(result.read_text())


def answer(run: Callable[[dict[str, Any]], Any]) -> None:
    """Be the process that `fresh` started: answer the request with `run`, and end."""
    die_with_parent()
    request_path, result_path = map(Path, sys.argv[1:3])
    result = run(json.loads(request_path.read_text()))
    result_path.write_text(json.dumps(result))
    # At once: threads that libraries have left may abort the interpreter's own end.
    os._exit(0)
