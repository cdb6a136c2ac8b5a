"""Workers and devices of a simulated cluster, behind the interfaces of the real ones.

Its clock is virtual. What the driver takes between two calls is added to it as it was
measured, so that a driver that is too slow delays the cluster here as it would there.
"""

import collections
import functools
import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Sequence

from flytune.caches.columns import Status
from flytune.tuner.batches import BuildEvent, Ended
from flytune.tuner.build_worker import TELL_S
from flytune.tuner.candidate import BuildResult, Candidate, RunResult, TuneTask
from flytune.tuner.overlap import Timed

# As many as a race of a list takes.
_SAMPLES = 15


class Clock:
    """The cluster's time in seconds; it is the driver's turn until it waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.driver_s = 0.0
        """What the driver took in all."""
        self._since = time.thread_time()
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, happens: Callable[[], None]) -> None:
        """Let something happen once the time has come."""
        heapq.heappush(self._events, (when, next(self._numbers), happens))

    def driver_stops(self) -> None:
        """Count what the driver has taken since its turn began."""
        self.charge(time.thread_time() - self._since)

    def charge(self, seconds: float) -> None:
        """Count what a call of the cluster costs the driver."""
        self.now += seconds
        self.driver_s += seconds

    def driver_goes_on(self) -> None:
        """Give the driver its turn."""
        self._since = time.thread_time()

    def wait(self) -> None:
        """Let all happen that is due; where nothing is, wait for the next."""
        if self._events:
            self.now = max(self.now, self._events[0][0])
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()


class SimulatedBuilders:
    """So many cores; what is handed out to more waits for one."""

    def __init__(
        self,
        clock: Clock,
        slots: int,
        seconds_of: Callable[[Candidate], float],
        *,
        submit_s: float = 0.0,
        tell_s: float = 0.0,
    ) -> None:
        """Begin idle.

        Args:
            seconds_of: What a candidate takes to compile.
            submit_s: What handing out a batch costs the driver.
            tell_s: What taking a worker's results costs it.
        """
        self._clock, self._slots, self._seconds_of = clock, slots, seconds_of
        self._submit_s, self._tell_s = submit_s, tell_s
        self._free = slots
        self._queue: collections.deque[Sequence[Candidate]] = collections.deque()
        self._told: list[BuildEvent] = []
        self.batches = 0
        """How many were handed out."""
        self.told = 0
        """How often workers have told of results."""

    def most_at_once(self) -> int:
        """Return how many batches may be handed out."""
        return 2 * self._slots

    def submit(self, batch: Sequence[Candidate]) -> None:
        """Hand out a batch."""
        self._clock.driver_stops()
        self._clock.charge(self._submit_s)
        self.batches += 1
        self._queue.append(batch)
        self._begin()
        self._clock.driver_goes_on()

    def wait(self) -> Sequence[BuildEvent]:
        """Return what has happened at the next moment at which anything has."""
        self._clock.driver_stops()
        before = self.told
        self._clock.wait()
        self._clock.charge(self._tell_s * (self.told - before))
        told, self._told = self._told, []
        self._clock.driver_goes_on()
        return told

    def close(self) -> None:
        """There is nothing to take back."""

    def _begin(self) -> None:
        while self._free and self._queue:
            batch = self._queue.popleft()
            self._free -= 1
            at, since, results = self._clock.now, 0.0, []
            for candidate in batch:
                seconds = self._seconds_of(candidate)
                at, since = at + seconds, since + seconds
                name = candidate.choice_hash
                results.append(BuildResult(name, Status.OK, compile_s=seconds))
                if since > TELL_S and candidate is not batch[-1]:
                    self._tell(at, results, ended=False)
                    since, results = 0.0, []
            self._tell(at, results, ended=True)

    def _tell(self, at: float, results: list[BuildResult], *, ended: bool) -> None:
        def happens() -> None:
            self.told += 1
            self._told += results
            if ended:
                self._told.append(Ended())
                self._free += 1
                self._begin()

        self._clock.at(at, happens)


class SimulatedDevices:
    """So many accelerators; a free one takes the list that was handed out first."""

    def __init__(
        self, clock: Clock, number: int, seconds_of: Callable[[TuneTask], float]
    ) -> None:
        """Begin idle.

        Args:
            seconds_of: What a list takes to be checked and timed.
        """
        self._clock, self._seconds_of = clock, seconds_of
        self._free = number
        self._queue: collections.deque[tuple[TuneTask, tuple[BuildResult, ...]]]
        self._queue = collections.deque()
        self._done: list[Timed] = []
        self.busy_s = 0.0
        """Of all devices."""
        self.ended = 0.0
        """When the last list was timed."""

    def put(self, task: TuneTask, builds: tuple[BuildResult, ...]) -> None:
        """Hand out a list."""
        self._clock.driver_stops()
        self._queue.append((task, builds))
        self._begin()
        self._clock.driver_goes_on()

    def drop(self) -> int:
        """Forget what no device has begun; return how many lists that were."""
        dropped = len(self._queue)
        self._queue.clear()
        return dropped

    def done(self, *, wait: bool = False) -> Iterable[Timed]:
        """Return what is timed by now; where nothing is, wait for the next moment."""
        self._clock.driver_stops()
        if wait and not self._done:
            self._clock.wait()
        done, self._done = self._done, []
        self._clock.driver_goes_on()
        return done

    def _begin(self) -> None:
        while self._free and self._queue:
            task, builds = self._queue.popleft()
            self._free -= 1
            seconds = self._seconds_of(task)
            self.busy_s += seconds
            self._clock.at(
                self._clock.now + seconds, functools.partial(self._end, task, builds)
            )

    def _end(self, task: TuneTask, builds: tuple[BuildResult, ...]) -> None:
        results = tuple(_timed(build, at) for at, build in enumerate(builds))
        self._done.append(Timed(task, builds, results))
        self.ended = self._clock.now
        self._free += 1
        self._begin()


def _timed(build: BuildResult, at: int) -> RunResult:
    samples = tuple(10.0 + at + 0.01 * number for number in range(_SAMPLES))
    return RunResult(build.choice_hash, Status.OK, samples_us=samples, rel_error=0.0)
