"""Time the lists whose candidates are built while others still compile."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.device_process import DeviceGoneError

Run = Callable[[TuneTask, Sequence[BuildResult]], tuple[RunResult, ...]]
"""Runs one list on one device, in the calling thread."""
_WAIT_S = 1.0


class Timed(NamedTuple):
    """One list that is built and timed."""

    task: TuneTask
    builds: tuple[BuildResult, ...]
    results: tuple[RunResult, ...]


class Devices(Protocol):
    """What times lists: the devices of a cluster, or simulated ones."""

    def put(self, task: TuneTask, builds: tuple[BuildResult, ...]) -> None:
        """Hand out a list, which a free device takes."""

    def drop(self) -> int:
        """Forget what no device has begun; return how many lists that were."""

    def done(self, *, wait: bool = False) -> Iterable[Timed]:
        """Return what is timed by now; wait for a while where there is nothing.

        Raises:
            FlytuneError: no device is left, or two have failed on one list.
        """


def timed_while_building(
    tasks: Iterable[TuneTask],
    built: Mapping[str, BuildResult],
    building: Iterable[BuildResult | None],
    devices: Devices,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Timed]:
    """Yield every list once its candidates are built and timed, in no order.

    A list whose candidates are not all built when building ends is left out.

    Args:
        tasks: What to time.
        built: By choice hash, what needs no building any more.
        building: What is built meanwhile, as it ends; None where nothing is yet.
        stopped: Whether no list is to be begun any more: those are left out then.

    Raises:
        FlytuneError: as `Devices.done`.
    """
    lists = _Lists(tasks, built)
    left = 0
    for result in _with_start(building):
        for task, builds in lists.complete(result):
            devices.put(task, builds)
            left += 1
        for timed in devices.done():
            left -= 1
            yield timed
    while left:
        if stopped():
            left -= devices.drop()
        for timed in devices.done(wait=True):
            left -= 1
            yield timed


def _with_start(
    building: Iterable[BuildResult | None],
) -> Iterator[BuildResult | None]:
    """Yield None before the first result: lists may be complete before it."""
    yield None
    yield from building


class _Lists:
    """Lists that wait for their candidates."""

    def __init__(
        self, tasks: Iterable[TuneTask], built: Mapping[str, BuildResult]
    ) -> None:
        self._known = dict(built)
        self._waiting: dict[str, list[TuneTask]] = {}
        """By choice hash."""
        self._missing: dict[int, int] = {}
        """How many candidates each list lacks, by its identity."""
        self._complete: list[TuneTask] = []
        for task in tasks:
            names = {c.choice_hash for c in task.offered.candidates} - built.keys()
            self._missing[id(task)] = len(names)
            for name in names:
                self._waiting.setdefault(name, []).append(task)
            if not names:
                self._complete.append(task)

    def complete(
        self, result: BuildResult | None
    ) -> Iterator[tuple[TuneTask, tuple[BuildResult, ...]]]:
        """Yield the lists, with their builds, that lack nothing once this is built."""
        if result is not None:
            self._known[result.choice_hash] = result
            for task in self._waiting.pop(result.choice_hash, ()):
                self._missing[id(task)] -= 1
                if not self._missing[id(task)]:
                    self._complete.append(task)
        complete, self._complete = self._complete, []
        for task in complete:
            names = (c.choice_hash for c in task.offered.candidates)
            yield task, tuple(self._known[name] for name in names)


class _DeviceFailedError(Exception):
    """A device failed on a list that no other has failed on; its cause says how."""


class DevicePool:
    """A thread a device; they end with the process, or when their device fails.

    A device whose run raises is used no more, and its list goes to another, once: one
    that two devices fail on is at fault itself. A device that has left is not counted.
    """

    def __init__(
        self, runs: Iterable[Run], joined: Callable[[], Iterable[Run]] | None = None
    ) -> None:
        """Start the threads.

        Args:
            runs: One a device.
            joined: Returns the devices that have come since it was last asked. It
                raises `FlytuneError` where there is none, and was none for long.

        Raises:
            FlytuneError: there is no device.
        """
        self._ready: queue.Queue[tuple[TuneTask, tuple[BuildResult, ...]]]
        self._ready = queue.Queue()
        self._done: queue.Queue[Timed | BaseException] = queue.Queue()
        self._joined = joined
        self._alive = 0
        self._failed: BaseException | None = None
        """How the last device has failed."""
        self._gave_back: set[object] = set()
        """Lists that a device has failed on, by key."""
        self._add(runs)
        if not self._alive:
            raise FlytuneError("no device to time on")

    def put(self, task: TuneTask, builds: tuple[BuildResult, ...]) -> None:
        """Hand out a list, which the next free device takes."""
        self._ready.put((task, builds))

    def done(self, *, wait: bool = False) -> Iterator[Timed]:
        """Yield what is timed by now; wait for a while where there is nothing.

        Raises:
            FlytuneError: the last device has failed, or a second one on the same list,
                with its reason.
        """
        if self._joined is not None:
            self._add(self._joined())
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
            if isinstance(item, DeviceGoneError) and self._joined is not None:
                if not self._alive and self._failed is not None:
                    # Of the nodes that are left none has a device that works.
                    raise self._failed
                continue
            self._failed = item.__cause__ or item
            # What is no failure of a device would befall the next one too.
            if not self._alive or not isinstance(item, _DeviceFailedError):
                raise self._failed

    def drop(self) -> int:
        dropped = 0
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
                dropped += 1
        return dropped

    def _add(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._alive += 1
            threading.Thread(target=self._work, args=(run,), daemon=True).start()

    def _work(self, run: Run) -> None:
        while True:
            task, builds = self._ready.get()
            try:
                results = run(task, builds)
            except DeviceGoneError as error:
                self._ready.put((task, builds))
                self._done.put(error)
                return
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
