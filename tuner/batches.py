"""What is compiled next, and together; and who is at fault where a worker dies.

Nothing here knows of Ray or of a clock: `Builders` does, and a simulation of it may
stand in its place.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from flytune.caches.columns import Status
from flytune.tuner.candidate import BuildResult, Candidate

BATCH_S = 1.0
"""How long the compilations of a batch should take: far longer than handing it out."""
# A driver can hand out and take back more, but little more.
_MOST_A_SECOND = 400
MOST_TOGETHER = 64
"""Candidates of the longest batch: their sources travel together."""
# A chance of one in so many that any candidate of a build is wrongly found at fault.
_DOUBT = 100.0
_LEAST_DEATHS, _MOST_DEATHS = 2, 6
_OUT_OF_MEMORY_DEATHS = 2
# Candidates that are built before one is found at fault that has died twice.
_LATER = 100


@dataclass(frozen=True, slots=True)
class Lost:
    """The rest of a batch that a worker did not finish."""

    candidates: tuple[Candidate, ...]
    """Those without a result: one of them may be at fault."""
    status: Status = Status.FAULT
    reason: str = ""
    blames: bool = True
    """Whether it may be a candidate's fault; a node that has left is nobody's."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A batch all of whose results are there."""


BuildEvent = BuildResult | Lost | Ended


class Builders(Protocol):
    """Workers that compile batches: Ray's, or simulated ones."""

    def most_at_once(self) -> int:
        """Return how many batches may be handed out now; those in work count too."""

    def submit(self, batch: Sequence[Candidate]) -> None:
        """Hand out a batch; a worker takes it when it is free."""

    def wait(self) -> Sequence[BuildEvent]:
        """Return what has happened; wait for about a second where nothing has.

        Each batch ends with `Ended` or `Lost`.

        Raises:
            FlytuneError: the workers fail, through no candidate's fault.
        """

    def close(self) -> None:
        """Take back what was handed out and has not ended."""


class Batches:
    """The candidates that are still to be compiled, in their order."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._waiting = collections.deque(candidates)
        self._number = len(candidates)
        self._backends = {c.choice_hash: c.backend for c in candidates}
        self._took: dict[str, tuple[int, float]] = {}
        """How many were compiled, and their seconds in all, by backend."""
        self._alone: set[str] = set()
        """Hashes of those that were in a batch that died."""
        self._deaths: collections.Counter[str] = collections.Counter()
        self._built = 0
        self._pardoned = 0

    @property
    def waiting(self) -> int:
        """How many are to be handed out."""
        return len(self._waiting)

    def next(self, at_once: int) -> tuple[Candidate, ...]:
        """Take the next batch: what takes `BATCH_S`, and no more than a fair share.

        A cluster that is too large for the driver has longer ones. What was in a batch
        that died comes alone.

        Args:
            at_once: How many batches may be in work.
        """
        first = self._waiting.popleft()
        if first.choice_hash in self._alone:
            return (first,)
        together = [first]
        number, took_s = self._took.get(first.backend, (1, BATCH_S))
        share = len(self._waiting) // max(at_once, 1) + 1
        # Half of those that may be in work wait for a worker.
        batch_s = max(BATCH_S, at_once / 2 / _MOST_A_SECOND)
        most = min(MOST_TOGETHER, share, int(batch_s / max(took_s / number, 1e-6)))
        while self._waiting and len(together) < most:
            other = self._waiting[0]
            if other.backend != first.backend or other.choice_hash in self._alone:
                break
            together.append(self._waiting.popleft())
        return tuple(together)

    def built(self, result: BuildResult) -> None:
        """Learn how long one took, and that who died before was not at fault."""
        self._built += 1
        if result.choice_hash in self._deaths:
            self._pardoned += 1
        if result.status is Status.OK:
            backend = self._backends[result.choice_hash]
            number, took_s = self._took.get(backend, (0, 0.0))
            self._took[backend] = (number + 1, took_s + result.compile_s)

    def lost(self, lost: Lost) -> Iterator[BuildResult]:
        """Put back what a worker did not finish; yield what is found at fault."""
        if lost.blames and len(lost.candidates) > 1:
            self._alone.update(c.choice_hash for c in lost.candidates)
        elif lost.blames:
            (one,) = lost.candidates
            self._alone.add(one.choice_hash)
            self._deaths[one.choice_hash] += 1
            deaths = self._deaths[one.choice_hash]
            if deaths >= self._most_deaths(lost.status):
                if deaths == _LEAST_DEATHS and self._is_early(lost.status):
                    self._waiting.insert(_LATER, one)
                else:
                    yield BuildResult(one.choice_hash, lost.status, lost.reason)
                return
        self._waiting.extendleft(reversed(lost.candidates))

    def _is_early(self, status: Status) -> bool:
        """Whether more is known of who kills workers once others have been built."""
        return status is Status.FAULT and self._built < _LATER and self.waiting > 0

    def _most_deaths(self, status: Status) -> int:
        """Return how many deaths prove that a candidate is at fault.

        Where others died and were well later, somebody kills workers: then it takes as
        many as hardly befall any candidate by chance.
        """
        if status is Status.TIMEOUT:
            return 1
        if status is Status.OUT_OF_MEMORY:
            return _OUT_OF_MEMORY_DEATHS
        rate = min(self._pardoned / max(self._built, 1), 0.5)
        chance, deaths = self._number * rate**_LEAST_DEATHS, _LEAST_DEATHS
        while chance > 1 / _DOUBT and deaths < _MOST_DEATHS:
            chance, deaths = chance * rate, deaths + 1
        return deaths


def build_batches(
    candidates: Sequence[Candidate],
    builders: Builders,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[BuildResult | None]:
    """Yield a result of every candidate, as they end; None in between.

    Args:
        stopped: Whether nothing new is to be begun any more.

    Raises:
        FlytuneError: the workers fail, through no candidate's fault.
    """
    batches = Batches(candidates)
    try:
        yield from _drive(batches, builders, stopped)
    finally:
        builders.close()


def _drive(
    batches: Batches, builders: Builders, stopped: Callable[[], bool]
) -> Iterator[BuildResult | None]:
    running = 0
    while running or (batches.waiting and not stopped()):
        at_once = builders.most_at_once()
        while batches.waiting and running < at_once and not stopped():
            builders.submit(batches.next(at_once))
            running += 1
        events = builders.wait()
        yield None
        for event in events:
            if isinstance(event, BuildResult):
                batches.built(event)
                yield event
                continue
            running -= 1
            if isinstance(event, Lost):
                yield from batches.lost(event)
