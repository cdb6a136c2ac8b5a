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
    stand for its winner.
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
            _name(task) for task in tasks if library_of(task, refusals(task)) is None
        }

    def is_over(self) -> bool:
        """Whether no list and no candidate may be begun any more."""
        return not self._must and self._allowance.is_over()

    def timed(self, work: Timing, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        """Yield lists as they are timed, until the budget ends.

        Args:
            tasks: The hottest first.
        """
        ordered = sorted(tasks, key=lambda task: _name(task) not in self._must)
        size = len(ordered)
        if self._in_turn and self._allowance.budget is not None:
            size = _FIRST
        while ordered and not self.is_over():
            some, ordered = ordered[:size], ordered[size:]
            left_s = self._allowance.tuning_s()
            for timed in work.timed(some):
                self._must.discard(_name(timed.task))
                yield timed
            if ordered:
                took_s = (left_s - self._allowance.tuning_s()) / len(some)
                size = self._next_size(took_s)
                if not size:
                    return
                work.rest()

    def _next_size(self, list_s: float) -> int:
        """Return how many lists are next; 0 where none would end in time.

        Args:
            list_s: What one of the last ones took.
        """
        left_s = self._allowance.tuning_s()
        if list_s > left_s:
            return len(self._must)
        return max(1, int(left_s / 2 / list_s)) if list_s else _FIRST


def _name(task: TuneTask) -> tuple[str, str, str]:
    """Return what a list has in common with parts of it."""
    offered = task.offered
    return (offered.op, offered.inputs_key, offered.precision)
