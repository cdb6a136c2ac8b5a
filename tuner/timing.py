"""Time the candidates of one list against each other, so that noise cannot choose.

All candidates take turns in rounds, forwards and backwards, so that a drift of the
machine meets them alike; each round gives one sample a candidate. A candidate that is
surely beaten races no further, so that a long list costs little more than its leaders;
rounds go on while the leaders cannot be told apart, up to a limit.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from flytune.caches.ties import beaten, undecided

Clock = Callable[[], float]
"""Returns seconds."""
FAR = 0.1
"""Share of the fastest by which a candidate is beaten after the rough rounds."""
MOST_COPIES = 1024
"""Of a weight; a larger number is of one that is read in no time."""
T = TypeVar("T")
Sampler = Callable[[], float]
"""Launches a candidate some times and returns the mean in microseconds."""


@dataclass(frozen=True, slots=True)
class TimingPlan:
    """How long to measure."""

    warm_up: int = 3
    """Calls of each candidate that are not counted."""
    rough_rounds: int = 5
    """Rounds before candidates that are beaten by far race no further."""
    rounds: int = 15
    """Rounds before each look at the samples; at least 9. A look at every round
    would find a difference by chance sooner or later."""
    max_rounds: int = 150
    min_sample_us: float = 200.0
    """A sample repeats the call until it takes about this long."""
    max_seconds: float = 30.0
    """Stop adding rounds after this long, whatever is undecided."""
    settled: float = 0.04
    """Share of the fastest's time: a candidate that is not surely slower has more
    rounds while it may yet be slower by this."""


@dataclass(frozen=True, slots=True)
class Race:
    """The samples of one list, in microseconds, one a round and candidate."""

    samples_us: Mapping[str, tuple[float, ...]]
    """Rounds are aligned; one that was beaten has fewer."""
    beaten: frozenset[str]
    """Candidates that raced no further, surely slower than another."""


def time_interleaved(
    samplers: Mapping[str, Sampler],
    plan: TimingPlan,
    clock: Clock = time.perf_counter,
) -> Race:
    """Let the candidates race.

    Args:
        samplers: By candidate.
        plan: How long to measure.
        clock: A stand-in makes the timing of synthetic kernels exact.
    """
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    racing = list(samplers)
    start = clock()
    for round_ in range(plan.max_rounds):
        for name in racing if round_ % 2 == 0 else reversed(racing):
            samples[name].append(samplers[name]())
        done = round_ + 1
        if done == plan.rough_rounds:
            out = beaten(_sound(samples), FAR)
            racing = [name for name in racing if name not in out]
        if done >= plan.rounds and clock() - start > plan.max_seconds:
            break
        if done % plan.rounds == 0:
            leaders = _sound({name: samples[name] for name in racing})
            if not undecided(leaders, plan.settled):
                break
            out = beaten(leaders)
            racing = [name for name in racing if name not in out]
    return Race(
        {name: tuple(values) for name, values in samples.items()},
        frozenset(samples) - frozenset(racing),
    )


def calmest(
    run: Callable[[], tuple[T, float]], most: float, tries: int, plan: TimingPlan
) -> tuple[T, float]:
    """Race until it is undisturbed; return the least disturbed race and by how much.

    Args:
        run: Returns what a race gave, and how much it was disturbed.
        most: A disturbance that is none.
        tries: Races at most.
        plan: Its `max_seconds` are those after which no further race begins.
    """
    races = []
    end = time.monotonic() + plan.max_seconds
    for _ in range(tries):
        races.append(run())
        if races[-1][1] <= most or time.monotonic() > end:
            break
    return min(races, key=lambda pair: pair[1])


def wall_samplers(
    kernels: Mapping[str, Sequence[Callable[[], Any]]],
    plan: TimingPlan,
    clock: Clock = time.perf_counter,
) -> dict[str, Sampler]:
    """Return samplers of launches that end before they return, warmed up.

    Args:
        kernels: By candidate, the same launch over copies of its weight; a sample
            takes them in turn.
        plan: How long to measure.
        clock: A stand-in makes the timing of synthetic kernels exact.
    """
    samplers: dict[str, Sampler] = {}
    for name, launches in kernels.items():
        turn = _Turns(launches)
        for _ in range(plan.warm_up):
            turn()
        repeats = repeats_needed(_sample_us(turn, 1, clock), plan)
        samplers[name] = functools.partial(_sample_us, turn, repeats, clock)
    return samplers


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


def repeats_needed(once_us: float, plan: TimingPlan) -> int:
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
    if repeats > 1:
        # The first after another candidate's pays for its code that is not in a cache.
        turn()
    start = clock()
    for _ in range(repeats):
        turn()
    return (clock() - start) / repeats * 1e6


def copies_needed(weight_bytes: int, cache_bytes: int, budget_bytes: int) -> int:
    """Return how many copies of a weight to take turns with.

    Enough that a copy has left the last-level cache before its turn comes again,
    within the memory allowed; 1 when a single copy is larger than that cache. Of a tiny
    one no more than `MOST_COPIES`: a sample launches each at least once.
    """
    if weight_bytes <= 0:
        return 1
    wanted = math.ceil(2 * cache_bytes / weight_bytes) + 1
    if weight_bytes >= 2 * cache_bytes:
        wanted = 1
    return max(1, min(wanted, MOST_COPIES, budget_bytes // weight_bytes))
