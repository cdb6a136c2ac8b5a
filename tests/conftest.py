"""The real builds that tests share: a few minutes once, and nobody may change them."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

# Tests are imported by path; this lets them import their helpers by name.
sys.path.insert(0, str(Path(__file__).parent))

from builds import (
    COMMAND,
    LLAMA,
    QWEN2,
    Build,
    arguments_of,
    environment,
    run_build,
)


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


@pytest.fixture(scope="session")
def unfrozen_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("unfrozen")
    arguments = arguments_of(LLAMA, folder / "work", "unfrozen")
    return run_build(arguments, folder / "bundle", folder / "home")


@pytest.fixture(scope="session")
def unfrozen_bundle(unfrozen_build: Build) -> Path:
    return unfrozen_build.bundle


@pytest.fixture(scope="session")
def stopped_build(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "out").mkdir()
    arguments = arguments_of(QWEN2, folder / "work", "frozen")
    home = folder / "home"
    out = folder / "out" / "bundle.tar.zst"
    with subprocess.Popen(
        [*COMMAND, *arguments, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "] build: 1 of " in line:
                # As a terminal does it: every process of the group gets it.
                os.killpg(process.pid, signal.SIGINT)
        code = process.wait()
    left = tuple(path.name for path in out.parent.iterdir())
    return Stopped(arguments, home, code, "".join(lines), left, strays(home))


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


@pytest.fixture(scope="session")
def frozen_build(stopped_build: Stopped) -> Build:
    """The same command again, which goes on from where it was stopped."""
    out = stopped_build.home.parent / "out" / "bundle.tar.zst"
    return run_build(stopped_build.arguments, out, stopped_build.home)


@pytest.fixture(scope="session")
def frozen_bundle(frozen_build: Build) -> Path:
    return frozen_build.bundle
