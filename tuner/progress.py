"""Progress of long work: a live bar on a terminal, plain lines elsewhere."""

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

# Seconds between two plain lines of one stage.
_PLAIN_EVERY_S = 10.0


class Stage(Protocol):
    """One stage of a build under way."""

    def advance(self, detail: str = "") -> None:
        """One more item is done."""


class Progress:
    """Reports stages on stderr; stdout belongs to the result."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._begun: list[tuple[str, float]] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return round(time.monotonic() - self._start, 3)

    def begin(self, part: str) -> None:
        """Note that a part of the work begins, and the one before has ended."""
        self._begun.append((part, self.elapsed_s))

    def parts(self) -> list[tuple[str, float]]:
        """Return each part that was begun, and the seconds that it has taken."""
        marks = [*self._begun, ("", self.elapsed_s)]
        return [
            (part, round(end - start, 3))
            for (part, start), (_, end) in itertools.pairwise(marks)
        ]

    def say(self, line: str) -> None:
        """Print a line that stays."""
        minutes, seconds = divmod(int(self.elapsed_s), 60)
        print(f"[{minutes:02d}:{seconds:02d}] {line}", file=sys.stderr, flush=True)

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Stage]:
        """Show a stage of `total` items with its rate and the time left."""
        if total and sys.stderr.isatty():
            with _rich_stage(name, total) as stage:
                yield stage
        else:
            yield _PlainStage(self, name, total)


class _PlainStage:
    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress, self._name, self._total = progress, name, total
        self._done = 0
        self._start = self._said = time.monotonic()

    def advance(self, detail: str = "") -> None:
        self._done += 1
        now = time.monotonic()
        if self._done < self._total and now - self._said < _PLAIN_EVERY_S:
            return
        self._said = now
        rate = self._done / max(now - self._start, 1e-9)
        left = (self._total - self._done) / rate
        self._progress.say(
            f"{self._name}: {self._done} of {self._total}, {60 * rate:.0f}/min, "
            f"{left:.0f} s left{', ' if detail else ''}{detail}"
        )


@contextmanager
def _rich_stage(name: str, total: int) -> Iterator[Stage]:
    from rich import progress
    from rich.console import Console

    class _Bar:
        def advance(self, detail: str = "") -> None:
            bars.update(task, advance=1, description=f"{name} {detail}".strip())

    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bars:
        task = bars.add_task(name, total=total)
        yield _Bar()
