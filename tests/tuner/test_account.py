"""A build with a budget, from its estimate to what it says at its end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import Status
from flytune.caches.lists import lists_of
from flytune.caches.policy import cpu_policy
from flytune.caches.target import Target
from flytune.shapes.by_hand import HandList
from flytune.tuner import account as account_stage
from flytune.tuner import search as stage
from flytune.tuner.account import Account
from flytune.tuner.budget import Allowance, Meter, parse_budget
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.decision import Decision, decide
from flytune.tuner.journal import Journal
from flytune.tuner.options import BuildOptions
from flytune.tuner.overlap import Timed
from flytune.tuner.past import read_past
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.survival import changes
from flytune.tuner.timed_device import device_of
from flytune.tuner.unreached import UNREACHED, is_cut
from flytune.tuner.upgrade import Upgrade

LIST_S = 10.0
TASKS = tuple(
    replace(made, shape=replace(made.shape, count=n), counts=(n,))
    for n in range(1, 7)
    if (made := task([library(), candidate(f"c{n}")], m=16 * n, module=f"m{n}"))
)
"""The last is the hottest."""


class Hand:
    """A clock that timing moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def work_on(clock: Hand, asked: list[int]) -> Callable[..., Any]:
    class Work:
        def __init__(self, *given: Any) -> None:
            self._stop = given[5]

        def built(self, tasks: Sequence[TuneTask]) -> dict[str, BuildResult]:
            names = (c.choice_hash for t in tasks for c in t.offered.candidates)
            return {name: BuildResult(name, Status.OK) for name in names}

        def timed(self, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
            for one in tasks:
                if self._stop():
                    return
                asked.append(one.shape.count)
                clock.now += LIST_S
                names = [c.choice_hash for c in one.offered.candidates]
                built = tuple(BuildResult(n, Status.OK, compile_s=4.0) for n in names)
                runs = (
                    RunResult(
                        n,
                        Status.OK,
                        samples_us=(40.0 * one.shape.count,) * 9,
                        batch_s=1.5,
                    )
                    for n in names
                )
                yield Timed(one, built, tuple(runs))

        def rest(self) -> None:
            pass

        def ceilings(self, _: object) -> dict[str, Any]:
            return {}

    return Work


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_stage, "load_now", lambda: 1.0)


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.here(threads=2)


def given(
    folder: Path, target: Target, budget: str | None = None
) -> tuple[Plan, BuildOptions]:
    policy = cpu_policy("unfrozen", tokens=(16,), threads=2, attention="eager")
    own = folder / "own"
    listed = HandList("m", "m", (), "", "a list")
    plan = Plan(listed, (), None, policy, target, None, 0, own, folder / "out")
    options = BuildOptions(
        *("m", (16,), None, "unfrozen", 2, None, folder, None, None, 2),
        budget=None if budget is None else parse_budget(budget),
    )
    return plan, options


def built(
    folder: Path,
    target: Target,
    budget: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tasks: Sequence[TuneTask] = TASKS,
    upgrade: Upgrade | None = None,
) -> tuple[tuple[Decision, ...], list[int], dict[str, Any]]:
    """Search with a budget; return decisions, what was timed, and what is told."""
    clock, asked = Hand(), list[int]()
    monkeypatch.setattr(stage, "Work", work_on(clock, asked))
    plan, options = given(folder, target, budget)
    account = Account(plan, options, Allowance(options.budget, None, Meter(clock)), 0.0)
    progress = Progress()
    progress.begin("tune")
    farm: Any = SimpleNamespace(capacity=lambda: (2, 0))
    with Journal(plan.work / "journal.jsonl") as journal:
        found = stage.search(
            *(plan, tasks, options, journal, (), lambda: farm, progress),
            upgrade=upgrade,
            account=account,
        )
        account.keep(progress)
    return found.decisions, asked, account.closed(progress)


def test_the_hottest_come_first_and_the_rest_goes_on(
    tmp_path: Path,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    decisions, asked, row = built(tmp_path, target, "35s", monkeypatch)
    assert asked == [6, 5, 4]
    assert [decision.task for decision in decisions] == list(TASKS)
    cut = [decision for decision in decisions if is_cut(decision)]
    assert [decision.task.shape.count for decision in cut] == [1, 2, 3]
    assert {d.winner.choice_hash for d in cut} == {"library"}
    assert {d.winner.reason for d in cut} == {UNREACHED}
    assert {name: row["budget"][name] for name in ("asked", "lists", "unreached")} == {
        "asked": "35s",
        "lists": 6,
        "unreached": 3,
    }
    # By calls and size, the last half is the most.
    assert 0 < row["budget"]["share"] < 0.5
    said = capsys.readouterr().err
    assert "estimate: now about " in said
    assert "budget: 35s is too little: 3 of 6 lists were not reached" in said
    assert "the same command goes on from here" in said

    # A bigger budget times what is left, and nothing that is known.
    decisions, asked, row = built(tmp_path, target, "10m", monkeypatch)
    assert asked == [3, 2, 1]
    assert not any(map(is_cut, decisions))
    assert (row["budget"]["unreached"], row["budget"]["share"]) == (0, 0)
    assert "is too little" not in capsys.readouterr().err
    assert built(tmp_path, target, None, monkeypatch)[1] == []


def test_without_a_budget_the_estimate_alone_is_told(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions, asked, row = built(tmp_path, target, None, monkeypatch)
    assert asked == [6, 5, 4, 3, 2, 1]
    assert not any(map(is_cut, decisions))
    assert row.keys() == {"estimate"}
    estimate = row["estimate"]
    # Of a list by hand nothing is baked, and its file has no GEMM here.
    assert estimate["seconds"] == pytest.approx(sum(estimate["parts"].values()))
    assert estimate["refined_s"] > 0
    assert (estimate["gpu_hours"], estimate["took_cost"]) == (0, None)
    assert estimate["slots"] == 2


def test_what_its_front_decides_is_no_list_that_must_be_timed(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "abcdef"
    lone = task([candidate(name) for name in names], m=512)
    builds = [BuildResult(name, Status.OK) for name in names]
    runs = [RunResult(name, Status.OK, samples_us=(40.0,) * 9) for name in names]
    older = lists_of(decide(lone, builds, runs).records)
    moved = Target(target.hardware, {**target.software, "driver": "other"})
    upgrade = Upgrade(older, changes(target, moved))
    more: Any = {"tasks": (*TASKS, lone), "upgrade": upgrade}
    decisions, asked, _ = built(tmp_path, target, "1s", monkeypatch, **more)
    # Its front alone, and then the budget is spent.
    assert asked == [lone.shape.count]
    assert [is_cut(decision) for decision in decisions] == [True] * 6 + [False]


def test_what_it_took_is_there_for_the_next(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(tmp_path, target, "35s", monkeypatch)
    plan, options = given(tmp_path, target)
    past = read_past(tmp_path, plan.work, device_of(plan).name)
    (spent,) = past.spent
    assert (spent.amounts.lists, spent.amounts.compiled) == (3, 3)
    assert (spent.compile_s, spent.device_s) == (12.0, 4.5)
    assert len(past.listed) == 6
    assert len(past.decided) == 3
    account = Account(plan, options, Allowance(None, None, Meter()), 0.0)
    assert account.first.source == "1 earlier build on this device"
    # The three that are left are to be compiled, at what the others took.
    by_rates = 3 * 4.0
    assert account.first.parts["tune"] < by_rates + 3 * 1.5 + 10


def test_candidates_that_are_compiled_need_no_time(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flytune.tuner.built_kernels import BuiltKernels

    store = BuiltKernels(tmp_path / "own" / "built")
    for n in range(1, 7):
        store.keep(BuildResult(f"c{n}", Status.OK, compile_s=4.0, files={"k": b"k"}))
    row = built(tmp_path, target, None, monkeypatch)[2]
    other = built(tmp_path / "other", target, None, monkeypatch)[2]
    assert row["estimate"]["refined_s"] < other["estimate"]["refined_s"]
    plan, _ = given(tmp_path, target)
    (spent,) = read_past(tmp_path, plan.work, device_of(plan).name).spent
    assert (spent.amounts.compiled, spent.compile_s) == (0, 0)
