"""What a run says of itself where workers run files side by side: a line a file.

By itself pytest prints the dots of all workers mixed then, and no file and no time.
"""

import time
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

import pytest

Status = tuple[str, str, str | tuple[str, Mapping[str, bool]]]


@dataclass
class File:
    """A file that a worker runs."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    ended: float = 0.0


class ByFile:
    """Prints what became of a worker's file when it begins another, or ends.

    A failure is said at once besides.
    """

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal, self._start = terminal, time.monotonic()
        self._files: dict[str, File] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Status, Status]:
        """Print no dot."""
        category, _, word = yield
        return category, "", word

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        worker = str(getattr(report, "worker_id", ""))
        name = report.nodeid.partition("::")[0]
        file = self._files.get(worker)
        if file is None or file.name != name:
            self._end(worker)
            file = self._files[worker] = File(name)
        file.seconds += report.duration
        file.ended = time.monotonic()
        if report.failed:
            # At once: a run that is stopped prints no summary.
            crash = getattr(report.longrepr, "reprcrash", None)
            why = getattr(crash, "message", str(report.longrepr))
            line = f"{worker} FAILED in {report.when} {report.nodeid}: {why}"
            self._say(file.ended, line)
        if report.when == "call" or report.skipped:
            file.outcomes[report.outcome] += 1
        elif report.failed:
            file.outcomes["error"] += 1

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            for worker in sorted(self._files):
                self._end(worker)

    def _end(self, worker: str) -> None:
        if (file := self._files.pop(worker, None)) is None:
            return
        ended = ", ".join(f"{n} {what}" for what, n in sorted(file.outcomes.items()))
        line = f"{worker} {file.name}: {ended}, {file.seconds:.1f} s"
        self._say(file.ended, line)

    def _say(self, at: float, line: str) -> None:
        minutes, seconds = divmod(int(at - self._start), 60)
        self._terminal.write_line(f"[{minutes:02}:{seconds:02}] {line}")
