"""A headless Chromium that opens a page, runs code in it and takes pictures.

It is driven through a pair of pipes by the DevTools protocol
(chromedevtools.github.io/devtools-protocol), so that neither a port nor a package is
needed.
"""

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

_PROGRAMS = ("chromium", "chromium-headless-shell", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
    *("--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"),
)
_TOLD = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


def program() -> Path:
    """Return a Chromium: on PATH, or where `make` puts it.

    Raises:
        RuntimeError: it is in neither.
    """
    own = Path(sys.prefix) / "chromium" / "chromium"
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None and not own.exists():
        raise RuntimeError(f"no Chromium: run ci/chromium.sh {own.parent}")
    return Path(found) if found else own


class Page:
    """One open page."""

    def __init__(self, process: subprocess.Popen[bytes], pipes: tuple[BinaryIO, ...]):
        self._process, (self._reads, self._writes) = process, pipes
        self._numbers = itertools.count(1)
        self._session = ""
        self.complaints: list[str] = []
        """Errors and warnings on the page's console, and exceptions of its script."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call the browser and return what it answers.

        Raises:
            RuntimeError: it refuses, or has ended.
        """
        number = next(self._numbers)
        sent: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            sent["sessionId"] = self._session
        self._writes.write(json.dumps(sent).encode() + b"\0")
        self._writes.flush()
        while (row := self._next()).get("id") != number:
            self._note(row)
        if "error" in row:
            raise RuntimeError(f"{method}: {row['error']['message']}")
        return row["result"]

    def open(self, path: Path, *, width: int = 1200, height: int = 900) -> None:
        """Open a file and wait until it is loaded."""
        self.size(width, height)
        self.call("Page.navigate", url=path.absolute().as_uri())
        self.run(
            "new Promise(done => document.readyState === 'complete'"
            " ? done() : addEventListener('load', () => done()))"
        )

    def size(self, width: int, height: int) -> None:
        """Give the page a size in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1},
            mobile=False,
        )

    def media(self, kind: str = "", **features: str) -> None:
        """Show it for a medium, such as "print", and with media features."""
        named = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self.call("Emulation.setEmulatedMedia", media=kind, features=named)
        self.settle()

    def settle(self) -> None:
        """Wait until what has been asked for is drawn, and its events have come."""
        frames = "requestAnimationFrame(() => requestAnimationFrame(done))"
        self.run(f"new Promise(done => {frames})")

    def run(self, code: str) -> Any:
        """Return the value of an expression; a promise is waited for.

        Raises:
            RuntimeError: it throws.
        """
        answer = self.call(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def box(self, selector: str) -> Mapping[str, float]:
        """Return where on the page an element lies, for `picture`."""
        found = self.run(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return {x: box.x + scrollX, y: box.y + scrollY,"
            " width: box.width, height: box.height}; })()"
        )
        return dict(found)

    def picture(self, path: Path, clip: Mapping[str, float] | None = None) -> None:
        """Write a PNG of the page, or of a part of it."""
        if clip is None:
            metrics = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, **{k: metrics[k] for k in ("width", "height")}}
        taken = self.call(
            "Page.captureScreenshot",
            clip={**clip, "scale": 1},
            captureBeyondViewport=True,
        )
        path.write_bytes(base64.b64decode(taken["data"]))

    def pdf(self, path: Path) -> None:
        """Write the page as it is printed."""
        printed = self.call(
            "Page.printToPDF", preferCSSPageSize=True, printBackground=True
        )
        path.write_bytes(base64.b64decode(printed["data"]))

    def _next(self) -> dict[str, Any]:
        row = bytearray()
        while (byte := self._reads.read(1)) != b"\0":
            if not byte:
                raise RuntimeError(f"the browser has ended: {self._process.wait()}")
            row += byte
        return dict(json.loads(row))

    def _note(self, row: Mapping[str, Any]) -> None:
        if row.get("method") not in _TOLD:
            return
        told = row["params"]
        entry = told.get("entry", told)
        if entry.get("level", entry.get("type")) in ("log", "info", "debug"):
            return
        self.complaints.append(json.dumps(entry)[:500])


@contextmanager
def browser(chromium: Path) -> Iterator[Page]:
    """Start a browser with an empty profile, and end it after the block."""
    sent, answered = os.pipe(), os.pipe()

    def numbered() -> None:
        # The browser reads commands from 3 and answers on 4; ours may be these.
        read, written = (
            fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (sent[0], answered[1])
        )
        os.dup2(read, 3)
        os.dup2(written, 4)

    with tempfile.TemporaryDirectory(prefix="flytune-browser-") as profile:
        process = subprocess.Popen(
            [str(chromium), *_FLAGS, f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=numbered,
            close_fds=False,
            env={**os.environ, "HOME": profile},
        )
        os.close(sent[0])
        os.close(answered[1])
        reads, writes = os.fdopen(answered[0], "rb"), os.fdopen(sent[1], "wb")
        try:
            with reads, writes:
                yield Page(process, (reads, writes))
        finally:
            process.terminate()
            process.wait()
