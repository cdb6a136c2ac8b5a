"""Searches of lists whose costs are known, by who remembers what was asked."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import candidate, library, offered, task_of
from long_lists import BEST, BEST_US, H200, Device, long_list, observed, triton

from flytune.caches.columns import BUDGET, Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import ATEN, BuildResult, TuneTask
from flytune.tuner.decision import Decision
from flytune.tuner.ending import Ending
from flytune.tuner.journal import Journal
from flytune.tuner.overlap import Timed
from flytune.tuner.recall import Recall
from flytune.tuner.smart.cost_model import Observed
from flytune.tuner.smart.limits import REGISTERS, SHARED_MEMORY
from flytune.tuner.smart.list_search import LEADERS, LEAST, MODEL, SHARE, SHORT, WAVES
from flytune.tuner.smart.waves import SmartSearch, Time


def decisions(
    tasks: Sequence[TuneTask],
    time: Time,
    folder: Path,
    seed: int = 0,
    last: dict[tuple[str, str, str, tuple[str, ...]], str] | None = None,
    earlier: Sequence[Observed] = (),
    **more: Any,
) -> list[Decision]:
    search = SmartSearch(H200, earlier, seed=seed)
    with Journal(folder / "journal.jsonl") as journal:
        recall = Recall(journal, ())
        given = (time, recall, lambda _: None, tasks, last or {})
        found = search.decisions(*given, **more)
        return list(found)


def test_a_tenth_finds_the_best_and_says_why_the_rest_was_left_out(
    tmp_path: Path,
) -> None:
    task, device = long_list(), Device()
    earlier = observed(long_list(n=8192))
    (decision,) = decisions([task], device.time, tmp_path, earlier=earlier)
    assert decision.winner.choice_hash == BEST
    number = len(task.offered.candidates)
    assert len(device.compiled()) <= SHARE * number
    assert len(decision.records) == number
    left = [r for r in decision.records if r.pruned_by == MODEL]
    assert all(r.median_us is None and r.status is Status.OK for r in left)
    assert all(r.predicted_us for r in left)
    over = [r for r in decision.records if r.pruned_by in (SHARED_MEMORY, REGISTERS)]
    assert {r.status for r in over} == {Status.OVER_RESOURCES}
    assert all(r.reason and "not compiled" in r.reason for r in over)
    tried = len(device.compiled()) + 1
    assert len(left) + len(over) + tried == number


def test_where_nothing_is_known_it_comes_close(tmp_path: Path) -> None:
    device = Device()
    (decision,) = decisions([long_list()], device.time, tmp_path)
    assert (decision.winner.median_us or 0.0) <= 1.15 * BEST_US
    assert decision.winner.choice_hash not in device.asked[0]


def test_the_library_and_every_template_are_timed(tmp_path: Path) -> None:
    base = long_list()
    odd = triton(16, 32, 32, 2, 2, template="another")
    task = task_of(replace(base.offered, candidates=(*base.offered.candidates, odd)))
    device = Device()
    (decision,) = decisions([task], device.time, tmp_path)
    assert {"library", odd.choice_hash} <= set(device.asked[0])
    assert {r.template for r in decision.records if r.median_us} == {
        "mm",
        "triton_mm",
        "another",
    }


def test_of_a_template_that_tells_nothing_some_are_tried(tmp_path: Path) -> None:
    base = long_list().offered
    splits = [candidate(f"split {k}", "decompose_k", "decompose_k") for k in range(12)]
    task = task_of(replace(base, candidates=(*base.candidates, *splits)))
    device = Device()
    decisions([task], device.time, tmp_path)
    some = {c.choice_hash for c in splits} & set(device.asked[0])
    assert len(some) >= 5
    assert len(device.compiled()) <= SHARE * len(task.offered.candidates)


@pytest.mark.parametrize("number", [SHORT, SHORT + 1, 60, 100, 200])
def test_no_more_is_compiled_than_is_said(tmp_path: Path, number: int) -> None:
    base = long_list().offered
    splits = [candidate(f"split {k}", "decompose_k", "decompose_k") for k in range(12)]
    some = (*base.candidates[: number - len(splits)], *splits)
    device = Device()
    decisions([task_of(replace(base, candidates=some))], device.time, tmp_path)
    if number <= SHORT:
        assert len(device.compiled()) == number - 1
    else:
        assert LEAST // 2 < len(device.compiled()) <= max(LEAST, SHARE * number)
        assert len(device.asked) == len(WAVES)


def test_the_leaders_race_again_and_the_last_race_decides(tmp_path: Path) -> None:
    device = Device()
    (decision,) = decisions([long_list()], device.time, tmp_path)
    assert len(device.asked) <= len(WAVES)
    assert decision.winner.choice_hash in device.asked[-1]
    racing = [r for r in decision.records if r.median_us and not r.pruned_by]
    assert {r.choice_hash for r in racing} <= set(device.asked[-1])


def test_a_short_list_is_tried_whole(tmp_path: Path) -> None:
    candidates = [library(), *(triton(16, 32, 32, s, 4) for s in range(2, SHORT // 2))]
    device = Device()
    (decision,) = decisions([task_of(offered(candidates))], device.time, tmp_path)
    assert len(device.asked) == 1
    assert all(r.median_us for r in decision.records)


def test_a_seed_decides_what_is_tried_at_random(tmp_path: Path) -> None:
    asked = []
    for number, seed in enumerate((0, 0, 1)):
        folder, device = tmp_path / str(number), Device()
        folder.mkdir()
        decisions([long_list()], device.time, folder, seed=seed)
        asked.append(device.asked)
    assert asked[0] == asked[1] != asked[2]


def test_lists_learn_of_each_other(tmp_path: Path) -> None:
    tasks, device = [long_list(n=2048 * at) for at in range(1, 6)], Device()
    found = decisions(tasks, device.time, tmp_path)
    assert len(found) == len(tasks)
    best = {decision.winner.choice_hash for decision in found}
    assert best == {BEST}


class Interrupted(Exception):
    pass


def test_an_interrupted_search_does_no_wave_again(tmp_path: Path) -> None:
    tasks = [long_list(), long_list(n=8192)]
    whole = Device()
    (tmp_path / "whole").mkdir()
    expected = decisions(tasks, whole.time, tmp_path / "whole")
    device = Device()

    def until(tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        if len(device.asked) >= len(whole.asked) - 1:
            raise Interrupted
        for one in device.time(tasks):
            yield one
            # The second list of the second wave is lost with the driver.
            if len(device.asked) == 3:
                raise Interrupted

    with pytest.raises(Interrupted):
        decisions(tasks, until, tmp_path)
    before = list(device.asked)
    again = Device()
    found = decisions(tasks, again.time, tmp_path)
    assert [*before, *again.asked][: len(before)] == whole.asked[: len(before)]
    assert again.asked == whole.asked[len(before) :]
    assert found == expected


def test_a_torn_wave_is_done_again(tmp_path: Path) -> None:
    device = Device()
    decisions([long_list()], device.time, tmp_path)
    path = tmp_path / "journal.jsonl"
    first, *_ = path.read_bytes().splitlines(keepends=True)
    assert b'"wave": 0' in first
    path.write_bytes(first[:-9])
    again = Device()
    decisions([long_list()], again.time, tmp_path)
    assert again.asked == device.asked


def test_candidates_that_die_cost_their_place_alone(tmp_path: Path) -> None:
    task = long_list()
    best = BEST
    device = Device(failing=frozenset({best}))
    earlier = observed(long_list(n=8192))
    (decision,) = decisions([task], device.time, tmp_path, earlier=earlier)
    assert decision.winner.choice_hash != best
    found = {r.choice_hash: r for r in decision.records}
    assert found[best].status is Status.FAULT
    assert found[best].reason == "it died"


def test_a_wave_without_survivors_is_no_end(tmp_path: Path) -> None:
    base = long_list().offered
    task = task_of(replace(base, candidates=base.candidates[1:]))
    probe = Device()
    (tmp_path / "probe").mkdir()
    decisions([task], probe.time, tmp_path / "probe")
    device = Device(failing=frozenset(probe.asked[0]))
    (decision,) = decisions([task], device.time, tmp_path)
    assert decision.winner.choice_hash not in probe.asked[0]


def test_what_may_not_be_tried_any_more_loses_its_time(tmp_path: Path) -> None:
    task = long_list()
    (first,) = decisions([task], Device().time, tmp_path)
    name = first.winner.choice_hash
    device = Device()
    refusal = {name: BuildResult(name, Status.FAULT, "it killed another build")}
    (again,) = decisions([task], device.time, tmp_path, refusals=lambda _: refusal)
    assert again.winner.choice_hash != name
    assert all(name not in asked for asked in device.asked)
    (refused,) = (r for r in again.records if r.choice_hash == name)
    assert (refused.status, refused.median_us) == (Status.FAULT, None)
    assert refused.reason == "it killed another build"


def test_what_failed_by_chance_has_another(tmp_path: Path) -> None:
    earlier = observed(long_list(n=8192))
    device = Device(failing=frozenset({BEST}), failure=Status.TIMEOUT)
    task = long_list()
    (first,) = decisions([task], device.time, tmp_path, earlier=earlier)
    assert first.winner.choice_hash != BEST
    again = Device()
    (second,) = decisions([task], again.time, tmp_path, earlier=earlier)
    assert second.winner.choice_hash == BEST
    assert len(again.asked) == 1


def test_what_an_older_bundle_has_in_front_comes_first(tmp_path: Path) -> None:
    task = long_list()
    name = "triton_mm 128-32-32-2-2"
    device = Device()
    decisions([task], device.time, tmp_path, first={task.offered.key: {name}})
    assert name in device.asked[0]


def test_who_was_well_and_did_not_race_again_is_not_called_slower(
    tmp_path: Path,
) -> None:
    task = long_list()
    equal = Device(equal=True)
    (decision,) = decisions([task], equal.time, tmp_path)
    rules = {r.pruned_by for r in decision.records if r.median_us}
    assert rules == {None, LEADERS}


def test_a_list_of_which_nothing_survives_is_an_error(tmp_path: Path) -> None:
    task = long_list()
    everyone = frozenset(c.choice_hash for c in task.offered.candidates)
    with pytest.raises(FlytuneError, match=r"no candidate survived.*it died"):
        decisions([task], Device(failing=everyone).time, tmp_path)


def test_lists_that_try_the_same_are_timed_once(tmp_path: Path) -> None:
    few = [library(), triton(16, 32, 32, 2, 4), triton(16, 32, 32, 3, 4)]
    over = triton(256, 256, 128, 4, 8)
    first, second = task_of(offered(few)), task_of(offered([*reversed(few), over]))
    device = Device()
    found = decisions([first, second], device.time, tmp_path)
    assert len(device.asked) == 1
    assert len({d.winner.choice_hash for d in found}) == 1
    assert [len(d.records) for d in found] == [3, 4]


def test_a_tie_goes_to_the_winner_of_before(tmp_path: Path) -> None:
    few = [library(), triton(64, 64, 128, 4, 4), triton(64, 64, 128, 4, 4, name="b")]
    task = task_of(offered(few))
    (alone,) = decisions([task], Device().time, tmp_path)
    (tmp_path / "again").mkdir()
    last = {task.offered.key: "b"}
    (kept,) = decisions([task], Device().time, tmp_path / "again", last=last)
    assert kept.winner.choice_hash == "b" != alone.winner.choice_hash


def test_the_library_alone_is_no_compilation(tmp_path: Path) -> None:
    task = task_of(offered([library("one"), library("two")]))
    (decision,) = decisions([task], Device().time, tmp_path)
    assert {r.backend for r in decision.records} == {ATEN}


def test_a_budget_ends_between_waves_and_leaves_no_list_in_between(
    tmp_path: Path,
) -> None:
    tasks, device = [long_list(), long_list(n=8192), long_list(n=2048)], Device()
    # The first wave of the first two, and then the budget is spent.
    given = {"goes_on": lambda _: len(device.asked) < 2}

    def until(tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        for one in device.time(tasks):
            yield one
            if not given["goes_on"](one.task):
                return

    found = decisions(tasks, until, tmp_path, **given)
    assert [decision.task for decision in found] == tasks[:2]
    for decision in found:
        assert decision.was_timed
        left = {r.pruned_by for r in decision.records if r.median_us is None}
        assert left == {BUDGET, SHARED_MEMORY, REGISTERS}
    # With more of it the search goes on, and ends as it would have.
    again = Device()
    whole = decisions(tasks, again.time, tmp_path)
    assert len(whole) == len(tasks)
    assert not any(r.pruned_by == BUDGET for d in whole for r in d.records)
    (tmp_path / "fresh").mkdir()
    fresh = Device()
    expected = decisions(tasks, fresh.time, tmp_path / "fresh")
    assert {d.task.shape.n: d.winner.choice_hash for d in whole} == {
        d.task.shape.n: d.winner.choice_hash for d in expected
    }
    assert [*device.asked, *again.asked] == fresh.asked


def test_a_list_without_a_library_is_searched_until_it_has_a_winner(
    tmp_path: Path,
) -> None:
    base = long_list().offered
    task = task_of(replace(base, candidates=base.candidates[1:]))
    probe = Device()
    (tmp_path / "probe").mkdir()
    decisions([task], probe.time, tmp_path / "probe")
    device = Device(failing=frozenset(probe.asked[0]))
    spent: Any = SimpleNamespace(is_over=lambda: True, budget=None, tuning_s=lambda: 0)
    ending = Ending(spent, [task], lambda _: {})
    work: Any = SimpleNamespace(timed=device.time)
    time = functools.partial(ending.timed, work)
    given = {"goes_on": ending.goes_on, "decided": ending.decided}
    (decision,) = decisions([task], time, tmp_path, **given)
    # Of the first wave none was left; the second is the last.
    assert len(device.asked) == 2
    assert decision.winner.choice_hash not in probe.asked[0]
    # What is on record of it is enough for another run that has no time.
    ending = Ending(spent, [task], lambda _: {})
    given = {"goes_on": ending.goes_on, "decided": ending.decided}
    (again,) = decisions([task], time, tmp_path, **given)
    assert len(device.asked) == 2
    assert again.winner == decision.winner


def test_a_list_whose_library_failed_is_searched_until_it_has_a_winner(
    tmp_path: Path,
) -> None:
    tasks = [long_list(), long_list(n=8192), long_list(n=2048)]
    probe = Device()
    (tmp_path / "probe").mkdir()
    decisions(tasks[:1], probe.time, tmp_path / "probe")
    failing = probe.asked[0]
    assert "library" in failing
    device = Device(failing=frozenset(failing))
    # Once the first list had its first wave the budget is spent.
    spent: Any = SimpleNamespace(
        is_over=lambda: len(device.asked) >= 1, budget=None, tuning_s=lambda: 0
    )
    ending = Ending(spent, tasks, lambda _: {})

    def timed(tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        for one in tasks:
            if ending.is_over():
                return
            yield from device.time([one])

    work: Any = SimpleNamespace(timed=timed)
    (decision,) = decisions(
        tasks,
        functools.partial(ending.timed, work),
        tmp_path,
        goes_on=ending.goes_on,
        decided=ending.decided,
        failed=ending.failed,
    )
    # The others were not begun for its sake: what stands for them is the library's.
    assert decision.task == tasks[0]
    assert decision.was_timed
    assert len(device.asked) == 2
    assert decision.winner.choice_hash not in failing
    assert {r.status for r in decision.records if r.backend == ATEN} == {Status.FAULT}


def test_a_search_that_was_at_its_end_is_not_called_cut_short(tmp_path: Path) -> None:
    device = Device()
    until = {"goes_on": lambda _: len(device.asked) < len(WAVES)}
    (decision,) = decisions([long_list()], device.time, tmp_path, **until)
    assert not any(r.pruned_by == BUDGET for r in decision.records)


def test_the_hottest_list_is_the_first_of_each_wave(tmp_path: Path) -> None:
    tasks, device = [long_list(n=2048), long_list(n=8192)], Device()
    times: list[float | None] = []

    def heat(task: TuneTask, us: float | None) -> float:
        times.append(us)
        return float(task.shape.n)

    (tmp_path / "plain").mkdir()
    some = {"goes_on": lambda _: len(device.asked) < 4}
    decisions(tasks, device.time, tmp_path, heat=heat, **some)
    plain = Device()
    once = {"goes_on": lambda _: len(plain.asked) < 2}
    decisions(tasks, plain.time, tmp_path / "plain", **once)
    assert device.asked[:2] == plain.asked[1::-1]
    # Before anything is timed there is no time, and afterwards the best one.
    assert times[:2] == [None, None]
    assert None not in times[2:]
