"""The progress of one model in a fleet, which waits while others have their turn."""

import time

from flytune.tuner.progress import Progress


class ModelProgress(Progress):
    """Says what a model's build does, by its name; its own time stands while it waits.

    It waits from the start, until its first part begins.
    """

    def __init__(self, fleet: Progress, name: str) -> None:
        super().__init__()
        self._fleet, self._name = fleet, name
        self._waits_since: float | None = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds that were spent on this model."""
        since = self._waits_since
        now = time.monotonic() if since is None else since
        return round(now - self._start, 3)

    def begin(self, part: str) -> None:
        if self._waits_since is not None:
            self._start += time.monotonic() - self._waits_since
            self._waits_since = None
        super().begin(part)

    def wait(self) -> None:
        """Let the model's time stand until its next part begins."""
        if self._waits_since is None:
            self._waits_since = time.monotonic()

    def say(self, line: str) -> None:
        """Print a line that stays, at the fleet's time."""
        self._fleet.say(f"{self._name}: {line}")
