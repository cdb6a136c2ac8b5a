"""A program that is a command: run to its end, each of its processes under a ledger."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from flytune.caches.child import PARENT, clean_environment
from flytune.caches.ledger_file import ProcessLedger, read_ledgers
from flytune.caches.policy import ServingPolicy
from flytune.caches.vllm_factors import portable_environment
from flytune.caches.watch import Watch, watched_environment
from flytune.shapes.errors import FlytuneError

_TAIL_LINES = 4
# What a command may take to end itself when it is asked to.
_GRACE_S = 5


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command that is baked, and proved, by running it as it is."""

    command: tuple[str, ...]
    """Its words; no shell reads them."""
    KIND: ClassVar[str] = "command"

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's form."""
        return {"kind": self.KIND, **asdict(self), "command": list(self.command)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "CommandSpec":
        """Read the manifest's form.

        Raises:
            FlytuneError: it is not the form of a command.
        """
        words = row.get("command")
        if row.get("kind") != cls.KIND or not isinstance(words, list) or not words:
            raise FlytuneError(f"program is malformed: {dict(row)}")
        return cls(tuple(map(str, words)))


@dataclass(frozen=True, slots=True)
class CommandRun:
    """A command that ended."""

    code: int
    """As a shell gives it: 128 and the signal's number for one that was killed."""
    peak_gib: float
    """Of its largest process."""
    processes: tuple[ProcessLedger, ...]
    """Those that compiled or looked for a graph."""


def command_environment(policy: ServingPolicy, cache_dir: Path) -> dict[str, str]:
    """Return this process's environment for a command, with caches in one directory.

    Settings of torch's are the policy's alone; what the command sets itself is its own.
    """
    env = portable_environment(clean_environment(policy, cache_dir))
    # Ours run on a config alone; a command may well have to fetch.
    del env["HF_HUB_OFFLINE"]
    offline = os.environ.get("HF_HUB_OFFLINE")
    return env if offline is None else {**env, "HF_HUB_OFFLINE": offline}


def run_watched(
    command: Sequence[str],
    environment: Mapping[str, str],
    watch: Watch,
    output: IO[Any],
    folder: Path | None = None,
) -> CommandRun:
    """Run a command to its end, and end whatever it left running.

    Args:
        output: Gets all that the processes print.
        folder: Where they write, an empty one; a temporary one where None.

    Raises:
        FlytuneError: there is no such command.
    """
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        raise FlytuneError(f"cannot run: {command[0]}: no such command")
    with contextlib.ExitStack() as stack:
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="flytune-watch-")
            folder = Path(stack.enter_context(made))
        env = watched_environment(folder, environment, watch)
        code, peak_gib = _run(command, env, output)
        return CommandRun(code, peak_gib, read_ledgers(folder))


def _run(
    command: Sequence[str], environment: Mapping[str, str], output: IO[Any]
) -> tuple[int, float]:
    """Return the exit code and the peak memory in GiB."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flytune.caches.launch", *command],
        env={**environment, PARENT: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # All that it starts can be ended with it.
        start_new_session=True,
    )
    try:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    except BaseException:
        _end(process)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    code = process.returncode
    return code if code >= 0 else 128 - code, usage.ru_maxrss / 2**20


def _end(process: subprocess.Popen[Any]) -> None:
    """End a command and all that descends from it, in sessions of their own too.

    A launcher of ranks is asked first, since it knows best how to end them.
    """
    import psutil

    try:
        below = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    except psutil.NoSuchProcess:
        return
    for one in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def last_words(path: Path) -> str:
    """Return the last lines that a command printed, in one."""
    lines = path.read_text(errors="replace").splitlines()
    tail = [line.strip() for line in lines if line.strip()][-_TAIL_LINES:]
    return " | ".join(tail) or "no output"
