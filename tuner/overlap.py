"""Time the lists whose candidates are built while others still compile."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask

Run = Callable[[TuneTask, Sequence[BuildResult]], tuple[RunResult, ...]]
"""Runs one list on one device, in the calling thread."""
_WAIT_S = 1.0


class Timed(NamedTuple):
    """One list that is built and timed."""

    task: TuneTask
    builds: tuple[BuildResult, ...]
    results: tuple[RunResult, ...]


def timed_while_building(
    tasks: Iterable[TuneTask],
    built: Mapping[str, BuildResult],
    building: Iterable[BuildResult | None],
    runs: Sequence[Run],
) -> Iterator[Timed]:
    """Yield every list once its candidates are built and timed, in no order.

    A device whose run raises is used no more, and its list goes to another, once: one
    that two devices fail on is at fault itself.

    Args:
        tasks: What to time.
        built: By choice hash, what needs no building any more.
        building: What is built meanwhile, as it ends; None where nothing is yet.
        runs: One a device; each has a thread of its own.

    Raises:
        FlytuneError: no device is left, or two have failed on one list.
    """
    waiting = list(tasks)
    if waiting and not runs:
        raise FlytuneError("no device to time on")
    pool = _Pool(runs)
    known = dict(built)
    left = len(waiting)
    for result in _with_start(building):
        if result is not None:
            known[result.choice_hash] = result
        ready = [task for task in waiting if _names(task) <= known.keys()]
        waiting = [task for task in waiting if task not in ready]
        for task in ready:
            pool.put(task, tuple(known[c.choice_hash] for c in task.offered.candidates))
        for timed in pool.done():
            left -= 1
            yield timed
    while left:
        for timed in pool.done(wait=True):
            left -= 1
            yield timed


def _with_start(
    building: Iterable[BuildResult | None],
) -> Iterator[BuildResult | None]:
    """Yield None before the first result: lists may be complete before it."""
    yield None
    yield from building


def _names(task: TuneTask) -> set[str]:
    return {candidate.choice_hash for candidate in task.offered.candidates}


class _DeviceFailedError(Exception):
    """A device failed on a list that no other has failed on; its cause says how."""


class _Pool:
    """A thread a device; they end with the process, or when their device fails."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._ready: queue.Queue[tuple[TuneTask, tuple[BuildResult, ...]]]
        self._ready = queue.Queue()
        self._done: queue.Queue[Timed | BaseException] = queue.Queue()
        self._alive = len(runs)
        self._gave_back: set[object] = set()
        """Lists that a device has failed on, by key."""
        for run in runs:
            threading.Thread(target=self._work, args=(run,), daemon=True).start()

    def put(self, task: TuneTask, builds: tuple[BuildResult, ...]) -> None:
        self._ready.put((task, builds))

    def done(self, *, wait: bool = False) -> Iterator[Timed]:
        """Yield what is timed by now; wait for a while where there is nothing.

        Raises:
            FlytuneError: the last device has failed, or a second one on the same list,
                with its reason.
        """
        while True:
            try:
                item = self._done.get(timeout=_WAIT_S if wait else 0.0)
            except queue.Empty:
                return
            wait = False
            if isinstance(item, Timed):
                yield item
                continue
            self._alive -= 1
            # What is no failure of a device would befall the next one too.
            if not self._alive or not isinstance(item, _DeviceFailedError):
                raise item if item.__cause__ is None else item.__cause__

    def _work(self, run: Run) -> None:
        while True:
            task, builds = self._ready.get()
            try:
                results = run(task, builds)
            except FlytuneError as error:
                if task.offered.key in self._gave_back:
                    self._done.put(error)
                    return
                self._gave_back.add(task.offered.key)
                self._ready.put((task, builds))
                failed = _DeviceFailedError(str(error))
                failed.__cause__ = error
                self._done.put(failed)
                return
            # Ray raises SystemExit too; each is raised again where it is waited for.
            except BaseException as error:
                self._done.put(error)
                return
            self._done.put(Timed(task, builds, results))
