import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.device_process import DeviceGoneError
from flytune.tuner.overlap import DevicePool, Run, Timed, timed_while_building

LIMIT_S = 120.0


def built(*names: str) -> dict[str, BuildResult]:
    return {name: BuildResult(name, Status.OK, compile_s=1.0) for name in names}


def list_of(*names: str) -> TuneTask:
    return task([library(), *map(candidate, names)], module=f"of {' '.join(names)}")


def timed(task: TuneTask, builds: Sequence[BuildResult]) -> tuple[RunResult, ...]:
    return tuple(RunResult(b.choice_hash, b.status, task.modules[0]) for b in builds)


def outcomes(
    tasks: Iterable[TuneTask],
    known: Mapping[str, BuildResult],
    building: Iterable[BuildResult],
    runs: Sequence[Run],
) -> dict[str, Timed]:
    """Time everything; return each list's outcome by its module, which is one."""
    outcomes = list(timed_while_building(tasks, known, building, DevicePool(runs)))
    by_module = {outcome.task.modules[0]: outcome for outcome in outcomes}
    assert len(by_module) == len(outcomes)
    return by_module


class Lost:
    """A device that runs some lists and then raises, whatever it is given."""

    def __init__(self, after: int = 0, error: Exception | None = None) -> None:
        self.ran: list[str] = []
        self.asked = threading.Event()
        self._after = after
        self._error = error or FlytuneError("the device's process died")

    def __call__(
        self, task: TuneTask, builds: Sequence[BuildResult]
    ) -> tuple[RunResult, ...]:
        self.asked.set()
        if len(self.ran) == self._after:
            raise self._error
        self.ran.append(task.modules[0])
        return timed(task, builds)


def test_nothing_to_time_starts_nothing() -> None:
    assert outcomes([], {}, [], [Lost()]) == {}
    assert outcomes([], {}, built("a").values(), [Lost()]) == {}


def test_each_list_has_the_builds_of_its_candidates_in_their_order() -> None:
    tasks = [list_of("a", "b"), list_of("c", "a"), list_of("d")]
    known, others = built("library", "c"), built("d", "b", "a")
    others["b"] = BuildResult("b", Status.TIMEOUT, "no result in 300 s")
    found = outcomes(tasks, known, others.values(), [timed])
    assert found.keys() == {"of a b", "of c a", "of d"}
    everything = known | others
    for outcome in found.values():
        names = [c.choice_hash for c in outcome.task.offered.candidates]
        assert outcome.builds == tuple(everything[name] for name in names)
        assert outcome.results == timed(outcome.task, outcome.builds)


def test_a_list_is_timed_only_when_all_of_it_is_built() -> None:
    built_so_far = set(built("library"))
    all_there: list[bool] = []

    def building() -> Iterator[BuildResult]:
        for result in built("a", "c", "b", "d").values():
            built_so_far.add(result.choice_hash)
            yield result

    def run(task: TuneTask, builds: Sequence[BuildResult]) -> tuple[RunResult, ...]:
        names = {c.choice_hash for c in task.offered.candidates}
        all_there.append(names <= built_so_far)
        return timed(task, builds)

    tasks = [list_of("a", "b"), list_of("c", "d")]
    outcomes(tasks, built("library"), building(), [run])
    assert all_there == [True, True]


def test_lists_go_to_a_device_in_the_order_in_which_they_are_complete() -> None:
    device = Lost(after=9)
    tasks = [list_of("late"), list_of("b"), list_of("a"), list_of("library")]
    order = built("a", "b", "late")
    outcomes(tasks, built("library"), order.values(), [device])
    assert device.ran == ["of library", "of a", "of b", "of late"]


def test_results_come_while_others_are_still_built() -> None:
    arrived: list[str] = []

    def building() -> Iterator[BuildResult]:
        yield built("a")["a"]
        # Builds on and on until the first list is timed: forever, were it not.
        while not arrived:
            yield built("another")["another"]
        yield built("b")["b"]

    known = built("library")
    for outcome in timed_while_building(
        [list_of("a"), list_of("b")], known, building(), DevicePool([timed])
    ):
        arrived.append(outcome.task.modules[0])
    assert arrived == ["of a", "of b"]


def test_what_is_known_is_timed_before_the_first_build_ends() -> None:
    ran = threading.Event()

    def run(task: TuneTask, builds: Sequence[BuildResult]) -> tuple[RunResult, ...]:
        ran.set()
        return timed(task, builds)

    def building() -> Iterator[BuildResult]:
        assert ran.wait(LIMIT_S)
        yield from built("b").values()

    tasks = [list_of("a"), list_of("b")]
    found = outcomes(tasks, built("library", "a"), building(), [run])
    assert found.keys() == {"of a", "of b"}


def test_devices_work_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=LIMIT_S)

    def run(task: TuneTask, builds: Sequence[BuildResult]) -> tuple[RunResult, ...]:
        together.wait()
        return timed(task, builds)

    tasks = [list_of(str(number)) for number in range(6)]
    names = ["library", *map(str, range(6))]
    assert len(outcomes(tasks, built(*names), [], [run] * 3)) == 6


@pytest.mark.parametrize("after", [0, 1])
def test_the_list_of_a_lost_device_goes_to_another(after: int) -> None:
    lost = Lost(after)

    def good(task: TuneTask, builds: Sequence[BuildResult]) -> tuple[RunResult, ...]:
        # Not before the other one has had its chance.
        assert lost.asked.wait(LIMIT_S)
        return timed(task, builds)

    tasks = [list_of(name) for name in "abcdefgh"]
    found = outcomes(tasks, built("library", *"abcdefgh"), [], [lost, good])
    assert len(found) == 8
    assert len(lost.ran) <= after


def test_a_device_lost_while_others_build_costs_no_list() -> None:
    lost, ran = Lost(), threading.Event()

    def good(task: TuneTask, builds: Sequence[BuildResult]) -> tuple[RunResult, ...]:
        assert lost.asked.wait(LIMIT_S)
        ran.set()
        return timed(task, builds)

    def building() -> Iterator[BuildResult]:
        yield from built("a", "b").values()
        assert ran.wait(LIMIT_S)
        yield from built("c").values()

    tasks = [list_of(name) for name in "abc"]
    assert len(outcomes(tasks, built("library"), building(), [lost, good])) == 3


def test_a_list_that_two_devices_fail_on_ends_it_and_spares_the_others() -> None:
    made = list_of("a")
    devices = [Lost() for _ in range(4)]
    with pytest.raises(FlytuneError, match="the device's process died"):
        outcomes([made], built("library", "a"), [], devices)
    assert sum(device.asked.is_set() for device in devices) == 2


def test_the_last_device_lost_ends_it_with_its_reason() -> None:
    lost = [Lost(error=FlytuneError("one")), Lost(after=1, error=FlytuneError("two"))]
    tasks = [list_of(name) for name in "abcd"]
    arrived: list[Timed] = []
    known = built("library", *"abcd")
    timing = timed_while_building(tasks, known, [], DevicePool(lost))
    with pytest.raises(FlytuneError, match=r"^(one|two)$"):
        arrived.extend(timing)
    assert lost[0].asked.is_set()
    assert lost[1].asked.is_set()


def test_the_last_device_lost_ends_a_build_that_goes_on() -> None:
    lost, ended = Lost(), threading.Event()

    def building() -> Iterator[BuildResult]:
        yield from built("a").values()
        while not ended.is_set():
            yield from built("another").values()

    with pytest.raises(FlytuneError, match="process died"):
        outcomes([list_of("a")], built("library"), building(), [lost])
    ended.set()


def test_a_device_that_leaves_costs_no_list() -> None:
    """Its lists go to others, however often: no list is at fault."""
    gone = [Lost(error=DeviceGoneError("its node has left")) for _ in range(3)]
    waits = threading.Event()

    def good(task: TuneTask, builds: Sequence[BuildResult]) -> tuple[RunResult, ...]:
        assert waits.wait(LIMIT_S)
        return timed(task, builds)

    joining: list[list[Run]] = [[], [], [good]]

    def joined() -> Iterable[Run]:
        if len(joining) == 1:
            # Not before all the others have left.
            assert all(device.asked.wait(LIMIT_S) for device in gone)
            waits.set()
        return joining.pop(0) if joining else []

    pool = DevicePool(gone, joined)
    tasks = [list_of(name) for name in "abcd"]
    found = list(timed_while_building(tasks, built("library", *"abcd"), [], pool))
    assert len(found) == 4


def test_a_device_that_failed_is_told_of_once_the_others_have_left() -> None:
    failed = Lost(error=FlytuneError("it cannot start"))
    gone = Lost(error=DeviceGoneError("its node has left"))

    def leaves(task: TuneTask, builds: Sequence[BuildResult]) -> tuple[RunResult, ...]:
        # Not before the other one has failed.
        assert failed.asked.wait(LIMIT_S)
        return gone(task, builds)

    pool = DevicePool([failed, leaves], lambda: [])
    tasks = [list_of(name) for name in "ab"]
    timing = timed_while_building(tasks, built("library", *"ab"), [], pool)
    with pytest.raises(FlytuneError, match="it cannot start"):
        list(timing)


def test_that_no_device_comes_any_more_ends_it() -> None:
    gone = Lost(error=DeviceGoneError("its node has left"))

    def joined() -> Iterable[Run]:
        if gone.asked.is_set():
            raise FlytuneError("no device for long")
        return []

    pool = DevicePool([gone], joined)
    timing = timed_while_building([list_of("a")], built("library", "a"), [], pool)
    with pytest.raises(FlytuneError, match="no device for long"):
        list(timing)


def test_a_list_that_is_not_built_whole_is_left_out() -> None:
    tasks = [list_of("a", "b"), list_of("a")]
    found = outcomes(tasks, built("library"), built("a").values(), [timed])
    assert found.keys() == {"of a"}


def test_no_devices_at_all_is_no_wait_for_ever() -> None:
    with pytest.raises(FlytuneError, match="no device to time on"):
        outcomes([list_of("a")], built("library", "a"), [], [])


def test_another_error_is_raised_at_once_whatever_devices_are_left() -> None:
    broken = Lost(error=ZeroDivisionError("a bug"))

    def good(task: TuneTask, builds: Sequence[BuildResult]) -> tuple[RunResult, ...]:
        assert broken.asked.wait(LIMIT_S)
        return timed(task, builds)

    tasks = [list_of(name) for name in "abcd"]
    with pytest.raises(ZeroDivisionError, match="a bug"):
        outcomes(tasks, built("library", *"abcd"), [], [broken, good])


def test_an_error_of_the_builders_is_theirs() -> None:
    def building() -> Iterator[BuildResult]:
        yield from built("a").values()
        raise FlytuneError("the disk is full")

    with pytest.raises(FlytuneError, match="the disk is full"):
        outcomes([list_of("b")], built("library"), building(), [timed])


def test_once_it_is_stopped_what_is_under_way_ends_and_nothing_else_begins() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(task: TuneTask, builds: Sequence[BuildResult]) -> tuple[RunResult, ...]:
        begun.set()
        assert goes_on.wait(LIMIT_S)
        return timed(task, builds)

    def stopped() -> bool:
        assert begun.wait(LIMIT_S)
        goes_on.set()
        return True

    pool = DevicePool([slow])
    known = built("library", *"abcd")
    tasks = [list_of(name) for name in "abcd"]
    # Whatever the device takes before it is asked, it takes no more after.
    (first, *more) = timed_while_building(tasks, known, [], pool, stopped)
    assert first.task.modules == ("of a",)
    assert len(more) <= 1
