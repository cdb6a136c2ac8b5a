"""The end of a build's tuning, when its budget says so."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from flytune.tuner.budget import Allowance
from flytune.tuner.candidate import BuildResult, ListKey, TuneTask
from flytune.tuner.overlap import Timed
from flytune.tuner.unreached import library_of

_FIRST = 2
"""Lists that tell what one takes."""


class Timing(Protocol):
    """What builds and times lists, as `Work` does."""

    def timed(self, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        """Yield lists once they are built and timed, the first built first."""

    def rest(self) -> None:
        """Give back what timing holds and building needs."""


class Ending:
    """Ends the tuning of some lists, but never before it would have to fail.

    A list that offers no library's kernel, or whose library's kernel has failed, is
    timed whatever that costs: no other could stand for its winner. It is told of every
    list that has a winner: what was timed of one may have decided nothing.
    """

    def __init__(
        self,
        allowance: Allowance,
        tasks: Sequence[TuneTask],
        refusals: Callable[[TuneTask], Mapping[str, BuildResult]],
        *,
        in_turn: bool = False,
    ) -> None:
        """Look for lists that must be timed.

        Args:
            refusals: Returns what of a list may not be tried, and why.
            in_turn: Whether building and timing want the same cores: what is built
                must be timed before the budget ends, so some lists are done at a time.
        """
        self._allowance, self._in_turn = allowance, in_turn
        self._must = {
            task.offered.key
            for task in tasks
            if library_of(task, refusals(task)) is None
        }
        self._awaited: set[ListKey] | None = None
        """What is being timed now; None between."""

    def is_over(self) -> bool:
        """Whether no list and no candidate may be begun any more."""
        return not self._needed() and self._allowance.is_over()

    def goes_on(self, task: TuneTask) -> bool:
        """Whether a whole list may be searched further."""
        return task.offered.key in self._must or not self._allowance.is_over()

    def decided(self, task: TuneTask) -> None:
        """Note that a whole list has a winner, whatever of it is still to be timed."""
        self._must.discard(task.offered.key)

    def failed(self, task: TuneTask) -> None:
        """Note that of a whole list all has failed that was tried, the library too."""
        self._must.add(task.offered.key)

    def timed(self, work: Timing, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        """Yield lists as they are timed, until the budget ends.

        Args:
            tasks: Lists, or parts of them, the hottest first.
        """
        self._awaited = set().union(*map(self._wholes, tasks))
        try:
            yield from self._timed(work, tasks)
        finally:
            self._awaited = None

    def _timed(self, work: Timing, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        ordered = sorted(tasks, key=lambda task: not self._wholes(task))
        size = len(ordered)
        if self._in_turn and self._allowance.budget is not None:
            size = _FIRST
        while ordered and not self.is_over():
            some, ordered = ordered[:size], ordered[size:]
            left_s = self._allowance.tuning_s()
            for timed in work.timed(some):
                yield timed
                # Whatever has become of it, this is all that is timed of it now.
                assert self._awaited is not None
                self._awaited -= self._wholes(timed.task)
            if ordered:
                took_s = (left_s - self._allowance.tuning_s()) / len(some)
                size = self._next_size(took_s)
                if not size:
                    return
                work.rest()

    def _needed(self) -> set[ListKey]:
        """Return the keys of lists that must be timed, of those that are timed now."""
        return self._must if self._awaited is None else self._must & self._awaited

    def _wholes(self, task: TuneTask) -> set[ListKey]:
        """Return which of the lists that must be timed one is, or is a part of."""
        *name, hashes = task.offered.key
        return {
            key
            for key in self._must
            if name == [*key[:-1]] and set(hashes) <= set(key[-1])
        }

    def _next_size(self, list_s: float) -> int:
        """Return how many lists are next; 0 where none would end in time.

        Args:
            list_s: What one of the last ones took.
        """
        left_s = self._allowance.tuning_s()
        if list_s > left_s:
            return len(self._needed())
        return max(1, int(left_s / 2 / list_s)) if list_s else _FIRST
