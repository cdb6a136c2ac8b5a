"""When tuning ends, and what is tuned all the same."""

from collections.abc import Callable, Iterator, Sequence

from fakes import candidate, library, task

from flytune.caches.columns import Status
from flytune.tuner.budget import Allowance, Meter, parse_budget
from flytune.tuner.candidate import BuildResult, TuneTask
from flytune.tuner.ending import Ending
from flytune.tuner.overlap import Timed
from flytune.tuner.recorded_runner import only


class Work:
    """Takes so many seconds a list, on a clock of its own."""

    def __init__(self, list_s: float) -> None:
        self.now, self._list_s = 0.0, list_s
        self.asked: list[list[TuneTask]] = []
        self.rests = 0
        self.stop: Callable[[], bool] = lambda: False

    def __call__(self) -> float:
        return self.now

    def timed(self, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        self.asked.append(list(tasks))
        for one in tasks:
            if self.stop():
                return
            self.now += self._list_s
            yield Timed(one, (), ())

    def rest(self) -> None:
        self.rests += 1


def lists(number: int) -> list[TuneTask]:
    return [
        task([library(f"l{n}"), candidate(f"c{n}")], m=16 * n, module=f"m{n}")
        for n in range(1, number + 1)
    ]


def ended(
    work: Work, budget: str | None, tasks: Sequence[TuneTask], in_turn: bool
) -> list[TuneTask]:
    asked = None if budget is None else parse_budget(budget)
    spent = Allowance(asked, None, Meter(work))
    ending = Ending(spent, tasks, lambda _: {}, in_turn=in_turn)
    work.stop = ending.is_over
    found = []
    for timed in ending.timed(work, tasks):
        ending.decided(timed.task)
        found.append(timed.task)
    return found


def test_without_a_budget_all_are_timed_at_once() -> None:
    tasks, work = lists(9), Work(10.0)
    assert ended(work, None, tasks, in_turn=True) == tasks
    assert (work.asked, work.rests) == ([tasks], 0)


def test_where_building_hides_timing_they_stay_together() -> None:
    tasks, work = lists(9), Work(10.0)
    assert ended(work, "35s", tasks, in_turn=False) == tasks[:4]
    assert work.asked == [tasks]


def test_where_it_does_not_some_are_done_at_a_time() -> None:
    tasks, work = lists(9), Work(10.0)
    assert ended(work, "65s", tasks, in_turn=True) == tasks[:6]
    assert [len(some) for some in work.asked] == [2, 2, 1, 1]
    assert work.rests == 3


def test_none_is_begun_that_would_not_end_in_time() -> None:
    work = Work(10.0)
    assert len(ended(work, "29s", lists(9), in_turn=True)) == 2
    assert work.now == 20


def test_one_that_has_no_library_is_timed_whatever_it_costs() -> None:
    lone = task([candidate("a"), candidate("b")], m=512)
    tasks = [*lists(3), lone]
    for in_turn in (False, True):
        work = Work(10.0)
        found = ended(work, "1s", tasks, in_turn=in_turn)
        assert found[0] == lone
        assert len(found) <= 2


def test_two_lists_of_the_same_inputs_are_two() -> None:
    one, two = (task([candidate(n), candidate(f"{n}2")]) for n in ("a", "b"))
    assert ended(Work(10.0), "1s", [*lists(3), one, two], in_turn=False) == [one, two]
    assert ended(Work(10.0), "1s", [*lists(3), one, two], in_turn=True) == [one, two]


def test_a_part_that_is_timed_decides_nothing_yet() -> None:
    lone = task([candidate("a"), candidate("b")], m=512)
    work = Work(10.0)
    ending = Ending(
        Allowance(parse_budget("1s"), None, Meter(work)), [lone], lambda _: {}
    )
    parts = [*lists(2), only(lone, ["a"])]
    # The part comes first, as its whole list would.
    assert [t.task for t in ending.timed(work, parts)] == [parts[2], *parts[:2]]
    assert not ending.is_over()
    ending.decided(lone)
    assert ending.is_over()


def test_a_library_that_may_not_be_tried_is_none() -> None:
    (one,) = lists(1)
    refusal = {"l1": BuildResult("l1", Status.FAULT, "excluded")}
    clock = Work(0.0)
    spent = Allowance(parse_budget("1s"), None, Meter(clock))
    clock.now += 9
    assert Ending(spent, [one], lambda _: {}).is_over()
    assert not Ending(spent, [one], lambda _: refusal).is_over()
