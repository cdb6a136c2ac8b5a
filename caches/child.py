"""Run a module of ours in a fresh process and read its result.

Fresh, because what a process has imported, compiled or set decides what it compiles
next; with an environment of our making, because torch reads settings from it.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.directories import variables
from flytune.caches.policy import ServingPolicy
from flytune.shapes.errors import FlytuneError

# What an outer shell or `flytune exec` may have set and a policy must not inherit.
FOREIGN = (
    *("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE", "TORCH_CACHING", "TORCH_LOGS"),
    *("TRITON_", "FLYDSL_", "FLYTUNE_INSTALLED", "FLYTUNE_CHANGES"),
    *("FLYTUNE_BUNDLE", "FLYTUNE_STRICT", "FLYTUNE_CAPTURE", "FLYTUNE_WATCH"),
)
# Of linux/prctl.h: the signal that a process gets when its parent dies.
_PR_SET_PDEATHSIG = 1
PARENT = "FLYTUNE_PARENT"
"""A variable: the process that a child is to end with."""
# Lines of a failed child's output that are shown where it names no error.
_TAIL_LINES = 4
# The line that ends a traceback; torch prints pages after its own.
_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception): .")


def clean_environment(
    policy: ServingPolicy, cache_dir: Path, **more: str
) -> dict[str, str]:
    """Return this process's environment with only the policy's settings of torch."""
    return {
        **plain_environment(),
        **policy.env,
        **variables(cache_dir),
        # Kernels are compiled in this process, where the ledger sees them.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        **more,
    }


def plain_environment() -> dict[str, str]:
    """Return this process's environment without any setting of torch's."""
    return {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}


def hide(modules: Iterable[str]) -> None:
    """Let this process find no module of these names, as where they are absent."""
    for name in modules:
        sys.modules[name] = None  # type: ignore[assignment]


def die_with_parent() -> None:
    """End this process with the one that started it, even if that is killed.

    Otherwise a bake would go on in the directory that the next build bakes in.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(PARENT) not in (None, str(os.getppid())):
        os.kill(os.getpid(), signal.SIGKILL)


def run_module(
    module: str,
    request: Mapping[str, Any],
    result: Path,
    env: Mapping[str, str],
    *,
    what: str,
) -> None:
    """Run `python -m module REQUEST RESULT` to its end; it writes `result`.

    Args:
        what: What the child does, for the error.

    Raises:
        FlytuneError: the child failed; the message holds its last words.
    """
    with tempfile.TemporaryDirectory(prefix="flytune-") as directory:
        path = Path(directory) / "request.json"
        path.write_text(json.dumps(dict(request)))
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(path), str(result)],
            env={**env, PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            error, tail = _last_words(process.stdout)
            code = process.wait()
        except BaseException:
            # Its own session: a Ctrl-C of ours has not reached it or its compilers.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code != 0:
        raise FlytuneError(_failure(what, code, error, tail))


def _last_words(output: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Read to the end; return the last error named, and the last lines."""
    error, tail = "", deque[str](maxlen=_TAIL_LINES)
    for line in output:
        if _ERROR.match(line):
            error = line.strip()
        if line.strip():
            tail.append(line.strip())
    return error, tuple(tail)


def _failure(what: str, code: int, error: str, tail: tuple[str, ...]) -> str:
    """Return one line: the child's own error where it has one."""
    if code == -signal.SIGKILL:
        return f"{what} was killed, most likely for want of memory"
    if error.startswith("flytune."):
        return f"{what} failed: {error.partition('Error: ')[2]}"
    if error:
        return f"{what} failed: {error}"
    return f"{what} failed with exit {code}: {' | '.join(tail) or 'no output'}"
