"""The end of a build's tuning, when its budget says so."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from flytune.tuner.budget import Allowance
from flytune.tuner.candidate import BuildResult, TuneTask
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

    A list that offers no library's kernel is timed whatever that costs: no other could
    stand for its winner. It is told of every list that has a winner: what was timed of
    one may have decided nothing.
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

    def is_over(self) -> bool:
        """Whether no list and no candidate may be begun any more."""
        return not self._must and self._allowance.is_over()

    def decided(self, task: TuneTask) -> None:
        """Note that a whole list has a winner, whatever of it is still to be timed."""
        self._must.discard(task.offered.key)

    def timed(self, work: Timing, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        """Yield lists as they are timed, until the budget ends.

        Args:
            tasks: Lists, or parts of them, the hottest first.
        """
        ordered = sorted(tasks, key=lambda task: not self._is_of_must(task))
        size = len(ordered)
        if self._in_turn and self._allowance.budget is not None:
            size = _FIRST
        while ordered and not self.is_over():
            some, ordered = ordered[:size], ordered[size:]
            left_s = self._allowance.tuning_s()
            yield from work.timed(some)
            if ordered:
                took_s = (left_s - self._allowance.tuning_s()) / len(some)
                size = self._next_size(took_s)
                if not size:
                    return
                work.rest()

    def _is_of_must(self, task: TuneTask) -> bool:
        """Whether a list, or what it is a part of, must be timed."""
        *name, hashes = task.offered.key
        return any(
            name == whole and set(hashes) <= set(every) for *whole, every in self._must
        )

    def _next_size(self, list_s: float) -> int:
        """Return how many lists are next; 0 where none would end in time.

        Args:
            list_s: What one of the last ones took.
        """
        left_s = self._allowance.tuning_s()
        if list_s > left_s:
            return len(self._must)
        return max(1, int(left_s / 2 / list_s)) if list_s else _FIRST
