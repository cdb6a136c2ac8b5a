"""A build on a Ray cluster, as a process of its own beside an actor that tells of it.

The actor lives on when whoever asked for the build goes away: the same command finds
it again by its name. So does what it writes, in `FLYTUNE_HOME` of its node: the work
directory, and what was made until it has been brought home.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flytune.caches.bundle import make_private
from flytune.caches.child import PARENT
from flytune.caches.home import flytune_home
from flytune.tuner.budget_options import PASSED
from flytune.tuner.cluster import MODULES

FILES = "files"
"""The folder of what was sent, below the working directory and the build's own."""
_MADE, _PACKED, _ENDED = "made", "packed.tar", "ended.json"
_COMMAND = """
import os
from flytune.caches.child import PARENT, die_with_parent
from flytune.tuner.cli import main

die_with_parent()
del os.environ[PARENT]
main(prog_name="flytune")
"""


class Line(NamedTuple):
    """A line that a build has printed."""

    is_result: bool
    """Whether it was printed on stdout."""
    text: str


class Parcel(NamedTuple):
    """What a build has made, as one file that is to be brought home."""

    name: str
    """Of the bundle, or "" where it is a TAR archive of several."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Request:
    """A build that was asked for elsewhere."""

    digest: str
    """Names it: the same words and files have the same."""
    options: tuple[str, ...]
    """Of `flytune build`, with names of files below `FILES`, seen from beside it."""
    rest: tuple[str, ...] = ()
    """What follows the options, from `--` on."""
    several: bool = False
    """Whether it makes several bundles."""
    fresh: bool = False
    """Whether what an earlier one made is thrown away."""
    passed_s: float = 0.0
    """Of the command that asks: its budget has one start, whenever a build begins."""

    @property
    def actor(self) -> str:
        """The name of its actor."""
        return f"flytune-build-{self.digest}"


class ClusterBuild:
    """The actor's side: starts the build where it was placed, and tells of it."""

    def __init__(self, request: Request) -> None:
        self._request, self._place = request, place_of(request.digest)
        self._lines: list[Line] = []
        self._code: int | None = None
        self._process: subprocess.Popen[str] | None = None
        self._news = threading.Condition()
        self._prepare()
        if (ended := self._place / _ENDED).exists():
            # It went on when nobody looked, and its actor is gone since.
            self._code = int(json.loads(ended.read_text())["code"])
            return
        # The system ends a process with the very thread that has started it.
        threading.Thread(target=self._run, daemon=True).start()

    def said(self, after: int, wait_s: float) -> tuple[list[Line], int | None]:
        """Return the lines after so many, and the exit code once all are said.

        Args:
            wait_s: Seconds to wait for a line where there is none.
        """
        with self._news:
            self._news.wait_for(
                lambda: len(self._lines) > after or self._code is not None, wait_s
            )
            return self._lines[after:], self._code

    def state(self) -> tuple[bool, bool]:
        """Return whether the build has ended, and whether it has made anything."""
        return self._code is not None, bool(self._bundles())

    def stop(self) -> None:
        """Let the build end, as a Ctrl-C does."""
        with self._news:
            if self._process is not None and self._code is None:
                self._process.send_signal(signal.SIGTERM)

    def parcel(self) -> Parcel | None:
        """Return what was made; None where nothing was."""
        if self._code is None or not (made := self._bundles()):
            return None
        name, path = made[0].name, made[0]
        if self._request.several:
            name, path = "", self._place / _PACKED
            with tarfile.open(path, "w") as archive:
                for one in made:
                    archive.add(one, one.name)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return Parcel(name, file.tell(), digest)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return a part of what `parcel` tells of."""
        packed = self._place / _PACKED
        path = packed if self._request.several else self._bundles()[0]
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size_bytes)

    def clear(self) -> None:
        """Remove what was sent and made: it is at home."""
        shutil.rmtree(self._place, ignore_errors=True)

    def _bundles(self) -> list[Path]:
        made = (self._place / _MADE).glob("*")
        return sorted(path for path in made if not path.name.startswith("."))

    def _prepare(self) -> None:
        """Put what was sent where the same command finds it again."""
        if self._request.fresh:
            shutil.rmtree(self._place, ignore_errors=True)
        make_private(self._place)
        (self._place / _MADE).mkdir(exist_ok=True)
        if (sent := Path(FILES)).is_dir():
            shutil.rmtree(self._place / FILES, ignore_errors=True)
            shutil.copytree(sent, self._place / FILES)

    def _run(self) -> None:
        try:
            code = self._built()
        # Whatever it is, who follows the build must hear of its end.
        except Exception as error:
            code = 1
            words = f"error: {type(error).__name__}: {error}"
            with self._news:
                self._lines.append(Line(False, words))
        with self._news:
            self._code = code
            self._news.notify_all()

    def _built(self) -> int:
        """Build in a process of its own; return its exit code."""
        import ray

        address = ray.get_runtime_context().gcs_address
        words = ["build", *self._request.options, "--ray", address, "--no-sign"]
        words += [*(["--fresh"] if self._request.fresh else []), *self._request.rest]
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *words],
            cwd=self._place / _MADE,
            env=_environment(self._request),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        with self._news:
            self._process = process
        results = threading.Thread(target=self._read, args=(process.stdout, True))
        results.start()
        self._read(process.stderr, False)
        results.join()
        code = process.wait()
        # They are sent again with each command, and may be large.
        shutil.rmtree(self._place / FILES, ignore_errors=True)
        if not self._request.several and self._bundles():
            beside = self._place / f"{_ENDED}.part"
            beside.write_text(json.dumps({"code": code}))
            beside.replace(self._place / _ENDED)
        return code

    def _read(self, stream: Any, is_result: bool) -> None:
        for text in stream:
            with self._news:
                self._lines.append(Line(is_result, text.rstrip("\n")))
                self._news.notify_all()


def place_of(digest: str) -> Path:
    """Return where this node keeps a build that was sent."""
    return flytune_home() / "sent" / digest


def _environment(request: Request) -> dict[str, str]:
    """Return the environment of a build, without what Ray has set for an actor."""
    import ray

    # Ray gives an actor without a core one thread.
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    sent: Mapping[str, Any] = ray.get_runtime_context().runtime_env
    modules = " ".join(sent.get("py_modules", ()))
    own = {MODULES: modules, PARENT: str(os.getpid()), PASSED: str(request.passed_s)}
    return {**env, **own}
