"""Real builds and verifications of tiny models, each in a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from click.testing import CliRunner

from flytune.caches.bundle import Bundle
from flytune.caches.keyring import own_key
from flytune.caches.manifest import MANIFEST_NAME
from flytune.caches.packing import pack
from flytune.tuner.cli import main

DATA = Path(__file__).parent / "data"
LLAMA = DATA / "tiny-llama.json"
QWEN2 = DATA / "tiny-qwen2.json"
"""Like the first, and with biases."""
SQUARE = DATA / "square-llama.json"
"""Its linears are all of one size, and one list of candidates."""
COMMAND = (sys.executable, "-c", "from flytune.tuner.cli import main; main()")
BARE = ("env", "LC_ALL=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0", *COMMAND)
"""The command in a locale that knows ASCII alone."""
# The start of a program that finds no FlyDSL, as on a host that lacks it.
FLYDSL_HIDDEN = """
import importlib.metadata, sys
version = importlib.metadata.version
def hiding(name):
    if name == "flydsl":
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = hiding
sys.modules["flydsl"] = None
"""
# Whatever the candidates took, C++ is the faster in the first list, and in no other.
RIGGED = """
from dataclasses import replace
from flytune.tuner import search
from flytune.tuner.candidate import CPP
from flytune.tuner.cli import main

decide, decided = search.decide, []

def rigged(task, builds, results, last):
    fast = [c.choice_hash for c in task.offered.candidates
            if (c.backend == CPP) == (not decided)]
    samples = max((result.samples_us for result in results), key=len)
    slow = tuple(2 * sample for sample in samples)
    results = [
        replace(r, samples_us=samples if r.choice_hash in fast else slow, beaten=False)
        for r in results
    ]
    decided.append(decide(task, builds, results, last))
    return decided[-1]

search.decide = rigged
main()
"""


@dataclass(frozen=True, slots=True)
class Build:
    """A build's command and what it left."""

    arguments: tuple[str, ...]
    """All but --out."""
    bundle: Path
    work: Path
    stdout: str
    log: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """A build that a Ctrl-C stopped while Ray's workers compiled for it."""

    arguments: tuple[str, ...]
    home: Path
    code: int
    log: str
    left: tuple[str, ...]
    """Names beside the output."""
    strays: tuple[str, ...]
    """Command lines of its processes that outlived it."""


def environment(home: Path) -> dict[str, str]:
    """The environment of a command: its own FLYTUNE_HOME."""
    return {**os.environ, "FLYTUNE_HOME": str(home)}


def flytune(
    home: Path, *arguments: object, command: Sequence[str] = COMMAND
) -> subprocess.CompletedProcess[str]:
    """Run a flytune command to its end, whatever that is."""
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment(home),
    )


def verified(bundle: Path, *options: str) -> dict[str, Any]:
    """What `flytune verify --json` says; the program runs in a process of its own."""
    result = CliRunner().invoke(main, ["verify", str(bundle), "--json", *options])
    assert result.stderr == ""
    row: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if row["ok"] else 1)
    return row


def arguments_of(model: Path, tokens: str, policy: str, work: Path) -> tuple[str, ...]:
    """A build for one thread, which other processes disturb less."""
    return (
        *("build", "--model", str(model), "--tokens", tokens, "--threads", "1"),
        *("--policy", policy, "--work", str(work)),
    )


def run_build(
    arguments: tuple[str, ...],
    out: Path,
    home: Path,
    command: Sequence[str] = COMMAND,
) -> Build:
    """Run a build that must succeed."""
    done = flytune(home, *arguments, "--out", out, command=command)
    assert done.returncode == 0, done.stderr + done.stdout
    work = Path(arguments[arguments.index("--work") + 1])
    return Build(arguments, out, work, done.stdout, done.stderr)


def stop_build(arguments: tuple[str, ...], out: Path, home: Path) -> Stopped:
    """Run a build and stop it when its first candidates are built."""
    with subprocess.Popen(
        [*COMMAND, *arguments, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
        start_new_session=True,
        # A shell's background job, which this may be, ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            begun = any("] build: " in earlier for earlier in lines)
            lines.append(line)
            if "] build: " in line and not begun:
                # As a terminal does it: every process of the group gets it.
                os.killpg(process.pid, signal.SIGINT)
        code = process.wait()
    left = tuple(path.name for path in out.parent.iterdir())
    return Stopped(arguments, home, code, "".join(lines), left, strays(home))


def kill_build(arguments: tuple[str, ...], out: Path, home: Path) -> tuple[str, ...]:
    """Kill a build while its bake compiles; return what outlived it.

    Its work directory holds no bake yet.
    """
    work = Path(arguments[arguments.index("--work") + 1])
    with subprocess.Popen(
        [*COMMAND, *arguments, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(home),
        start_new_session=True,
    ) as process:
        while not any(work.glob("*/bake/*/*.cpp")):
            assert process.poll() is None, "it ended before it compiled"
            time.sleep(0.05)
        # The driver alone, as the kernel does it when memory is short.
        process.kill()
    assert process.returncode == -signal.SIGKILL
    return strays(home)


def strays(home: Path) -> tuple[str, ...]:
    """Return what still runs for a build some seconds after it ended."""
    for _ in range(50):
        alive = tuple(
            " ".join(process.info["cmdline"])
            for process in psutil.process_iter(["environ", "cmdline"])
            if (process.info["environ"] or {}).get("FLYTUNE_HOME") == str(home)
        )
        if not alive:
            break
        time.sleep(0.2)
    return alive


def run_python(
    code: str, *arguments: object, env: Mapping[str, str] | None = None
) -> str:
    """Run a program that must succeed and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (env or {}),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def unpacked(bundle: Path, into: Path) -> Path:
    """A directory with all that a bundle holds, to be changed at will."""
    opened = Bundle.open(bundle)
    opened.place(into)
    (into / MANIFEST_NAME).write_bytes(opened.text)
    return into


def repacked(folder: Path, out: Path, **policy: Any) -> Path:
    """Pack a changed directory, its digests right and signed, with another policy."""
    manifest = Bundle.open(folder).manifest
    changed = {**manifest.policy}
    for name, value in policy.items():
        both = isinstance(value, Mapping)
        changed[name] = {**changed[name], **value} if both else value
    return pack(folder, replace(manifest, policy=changed), out, keys=[own_key()])


def copied(folder: Path, into: Path) -> Path:
    """A copy of a directory, to be changed at will."""
    return Path(shutil.copytree(folder, into))
