"""Time the candidates of one list against each other, so that noise cannot choose.

All candidates take turns in rounds, forwards and backwards, so that a drift of the
machine meets them alike; each round gives one sample a candidate. Rounds go on while
the leaders cannot be told apart, up to a limit.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flytune.tuner.select import undecided

Clock = Callable[[], float]
"""Returns seconds."""


@dataclass(frozen=True, slots=True)
class TimingPlan:
    """How long to measure."""

    warm_up: int = 3
    """Calls of each candidate that are not counted."""
    rounds: int = 15
    """Rounds before each look at the samples; at least 9. A look at every round
    would find a difference by chance sooner or later."""
    max_rounds: int = 45
    min_sample_us: float = 200.0
    """A sample repeats the call until it takes about this long."""
    max_seconds: float = 30.0
    """Stop adding rounds after this long, whatever is undecided."""


def time_interleaved(
    kernels: Mapping[str, Sequence[Callable[[], Any]]],
    plan: TimingPlan,
    clock: Clock = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Return the samples of each candidate in microseconds, one a round.

    Args:
        kernels: By candidate, the same launch over copies of its weight; a sample
            takes them in turn.
        plan: How long to measure.
        clock: A stand-in makes the timing of synthetic kernels exact.
    """
    turns = {name: _Turns(launches) for name, launches in kernels.items()}
    repeats = {}
    for name, turn in turns.items():
        for _ in range(plan.warm_up):
            turn()
        repeats[name] = _repeats(_sample_us(turn, 1, clock), plan)
    samples: dict[str, list[float]] = {name: [] for name in kernels}
    order = list(kernels)
    start = clock()
    for round_ in range(plan.max_rounds):
        for name in order if round_ % 2 == 0 else reversed(order):
            samples[name].append(_sample_us(turns[name], repeats[name], clock))
        done = round_ + 1
        if done >= plan.rounds and clock() - start > plan.max_seconds:
            break
        if done % plan.rounds == 0 and not undecided(_sound(samples)):
            break
    return {name: tuple(values) for name, values in samples.items()}


def unsound(samples_us: Sequence[float]) -> str:
    """Return why samples are no times, or nothing when they are.

    A kernel that a clock cannot see has no time, and one must not win by it.
    """
    for sample in samples_us:
        if not 0 < sample < math.inf:
            return f"a sample is no time: {sample:g} us"
    return ""


def _sound(samples: Mapping[str, list[float]]) -> dict[str, list[float]]:
    return {name: taken for name, taken in samples.items() if not unsound(taken)}


def _repeats(once_us: float, plan: TimingPlan) -> int:
    """Return how many calls make a sample; one that has no time is called once."""
    if unsound([once_us]):
        return 1
    return max(1, math.ceil(plan.min_sample_us / max(once_us, 0.1)))


class _Turns:
    """Calls its launches one after the other, round and round."""

    def __init__(self, launches: Sequence[Callable[[], Any]]) -> None:
        self._launches, self._next = launches, 0

    def __call__(self) -> None:
        self._launches[self._next]()
        self._next = (self._next + 1) % len(self._launches)


def _sample_us(turn: _Turns, repeats: int, clock: Clock) -> float:
    start = clock()
    for _ in range(repeats):
        turn()
    return (clock() - start) / repeats * 1e6


def copies_needed(weight_bytes: int, cache_bytes: int, budget_bytes: int) -> int:
    """Return how many copies of a weight to take turns with.

    Enough that a copy has left the last-level cache before its turn comes again,
    within the memory allowed; 1 when a single copy is larger than that cache.
    """
    if weight_bytes <= 0:
        return 1
    wanted = math.ceil(2 * cache_bytes / weight_bytes) + 1
    if weight_bytes >= 2 * cache_bytes:
        wanted = 1
    return max(1, min(wanted, budget_bytes // weight_bytes))
