"""Real builds and verifications of tiny models, each in a process of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flytune.caches.bundle import Bundle
from flytune.caches.manifest import MANIFEST_NAME
from flytune.caches.packing import pack

DATA = Path(__file__).parent / "data"
LLAMA = DATA / "tiny-llama.json"
QWEN2 = DATA / "tiny-qwen2.json"
"""Like the first, and with biases."""
COMMAND = (sys.executable, "-c", "from flytune.tuner.cli import main; main()")


@dataclass(frozen=True, slots=True)
class Build:
    """A build's command and what it left."""

    arguments: tuple[str, ...]
    """All but --out."""
    bundle: Path
    work: Path
    stdout: str
    log: str


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a command: its own FLYTUNE_HOME."""
    return {**os.environ, "FLYTUNE_HOME": str(home), **more}


def flytune(
    home: Path, *arguments: object, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a flytune command to its end, whatever that is."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment(home, **more),
    )


def arguments_of(model: Path, work: Path, policy: str) -> tuple[str, ...]:
    """A build at one token and at eight, one thread, so that others matter less."""
    return (
        *("build", "--model", str(model), "--tokens", "1,8", "--threads", "1"),
        *("--policy", policy, "--work", str(work)),
    )


def run_build(arguments: tuple[str, ...], out: Path, home: Path) -> Build:
    """Run a build that must succeed."""
    done = flytune(home, *arguments, "--out", out)
    assert done.returncode == 0, done.stderr + done.stdout
    work = Path(arguments[arguments.index("--work") + 1])
    return Build(arguments, out, work, done.stdout, done.stderr)


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
    (into / MANIFEST_NAME).write_bytes(opened.manifest.to_json())
    return into


def repacked(folder: Path, out: Path, **policy: Any) -> Path:
    """Pack a changed directory with digests that are right, and another policy."""
    manifest = Bundle.open(folder).manifest
    changed = {**manifest.policy}
    for name, value in policy.items():
        both = isinstance(value, Mapping)
        changed[name] = {**changed[name], **value} if both else value
    return pack(folder, replace(manifest, policy=changed), out)


def copied(folder: Path, into: Path) -> Path:
    """A copy of a directory, to be changed at will."""
    return Path(shutil.copytree(folder, into))
