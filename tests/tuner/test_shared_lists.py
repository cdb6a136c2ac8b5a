"""What builds of a fleet take from each other, by made-up lists."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import Status
from flytune.caches.lists import lists_of
from flytune.caches.policy import cpu_policy
from flytune.caches.target import Target
from flytune.shapes.by_hand import HandList
from flytune.tuner.built_kernels import BuiltKernels
from flytune.tuner.candidate import BuildResult, Candidate, RunResult, TuneTask
from flytune.tuner.decision import Decision, decide
from flytune.tuner.journal import Journal, read_entries
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.recall import Recall, list_id
from flytune.tuner.search import search
from flytune.tuner.shared_lists import SharedLists, Sharing, sharing_key

A, B, C = library("a"), candidate("b"), candidate("c")


def decided(made: TuneTask, *times_us: float, status: Status = Status.OK) -> Decision:
    """Decide a task from one time a candidate; the last ends with `status`."""
    builds, results = [], []
    for one, time_us in zip(made.offered.candidates, times_us, strict=True):
        name = one.choice_hash
        builds.append(BuildResult(name, Status.OK))
        results.append(RunResult(name, Status.OK, samples_us=(time_us,) * 9))
    if status is not Status.OK:
        results[-1] = RunResult(name, status, "of the moment")
    return decide(made, builds, results).decided_at(7.0)


def options(work: Path, **changes: Any) -> BuildOptions:
    whole = BuildOptions(
        model="m",
        tokens=(1,),
        attention=None,
        policy="unfrozen",
        threads=2,
        out=None,
        work=work,
        ray=None,
        from_bundle=None,
        bake_passes=2,
    )
    return replace(whole, **changes)


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.here(threads=2)


def plan_in(work: Path, target: Target, **policy: Any) -> Plan:
    words = {"tokens": (1,), "threads": 2, "attention": "eager", **policy}
    return Plan(
        *(HandList("m", "m", (), "", "a list"), (), None),
        *(cpu_policy(words.pop("name", "unfrozen"), **words), target, None),
        *(0, work, work / "bundle"),
    )


def never() -> NoReturn:
    raise AssertionError("something is built or timed")


def searched(
    folder: Path, target: Target, tasks: Sequence[TuneTask], shared: SharedLists
) -> tuple[tuple[Decision, ...], Sharing]:
    """Search where nothing may be built, as one model of a fleet."""
    sharing, plan = Sharing(shared), plan_in(folder, target)
    with Journal(folder / "journal.jsonl") as journal:
        found = search(
            *(plan, tasks, options(folder.parent), journal, (), never, Progress()),
            sharing=sharing,
        )
    return found.decisions, sharing


def journalled(folder: Path, *decisions: Decision) -> None:
    with Journal(folder / "journal.jsonl") as journal:
        for decision in decisions:
            Recall(journal, ()).keep(decision)


def test_a_list_that_another_model_has_decided_is_not_timed(
    tmp_path: Path, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = decided(task([A, B], "layers.*.up_proj"), 10.0, 5.0)
    journalled(tmp_path / "one", theirs)
    shared = SharedLists()
    shared.read(tmp_path / "one")
    own = task([B, A], "layers.*.gate_proj")
    own = replace(own, shape=replace(own.shape, count=40, tp=2))
    (decision,), sharing = searched(tmp_path / "two", target, [own], shared)
    assert decision.winner.choice_hash == "b"
    assert decision.winner.median_us == 5.0
    # A record is of the model that it is in.
    for record in decision.records:
        assert (record.module, record.count, record.tp) == (own.shape.module, 40, 2)
        assert record.at_s is None
    assert (sharing.taken, sharing.timed) == ({list_id(own)}, set())
    said = capsys.readouterr().err
    assert "tune: 1 list decided for other models" in said
    assert "tune: 0 lists to time, 1 known from earlier work" in said
    # Its own journal has none of it, and the other's is as it was.
    entries = read_entries(tmp_path / "two" / "journal.jsonl")
    assert [entry["kind"] for entry in entries] == ["device"]


@pytest.mark.parametrize("other", [[A, B, C], [A, C]])
def test_a_list_of_other_candidates_is_another(
    tmp_path: Path, target: Target, other: list[Candidate]
) -> None:
    shared = SharedLists()
    theirs = decided(task([A, B]), 10.0, 5.0)
    shared.add(list_id(theirs.task), theirs.records)
    with pytest.raises(AssertionError, match="something is built"):
        searched(tmp_path / "two", target, [task(other)], shared)


def test_what_failed_by_chance_is_not_taken(tmp_path: Path, target: Target) -> None:
    shared = SharedLists()
    theirs = decided(task([A, B]), 10.0, 5.0, status=Status.TIMEOUT)
    shared.add(list_id(theirs.task), theirs.records)
    with pytest.raises(AssertionError, match="something is built"):
        searched(tmp_path / "two", target, [theirs.task], shared)


def test_own_and_older_decisions_come_first_and_are_given_to_the_others(
    tmp_path: Path,
) -> None:
    made = task([A, B])
    ours, older, theirs = (decided(made, 10.0, t) for t in (5.0, 6.0, 7.0))
    shared = SharedLists()
    shared.add(list_id(made), theirs.records)
    with Journal(tmp_path / "journal.jsonl") as journal:
        recall = Recall(journal, older.records, sharing=Sharing(shared))
        found = recall.decision(made)
        assert found is not None
        assert found.winner.median_us == 6.0
        assert shared.of(made)[1].median_us == 6.0
        recall.keep(ours)
        assert shared.of(made)[1].median_us == 5.0


def test_decisions_of_a_kept_bundle_are_known_without_its_directory() -> None:
    shared, made = SharedLists(), task([A, B])
    shared.add_bundle(lists_of(decided(made, 10.0, 5.0).records))
    assert shared.knows(made)
    assert not shared.knows(task([A, C]))


def test_a_journal_that_is_damaged_or_held_is_read_as_far_as_it_goes(
    tmp_path: Path,
) -> None:
    made, folder = task([A, B]), tmp_path / "one"
    journalled(folder, decided(made, 10.0, 5.0))
    path = folder / "journal.jsonl"
    rows = [{"kind": "record"}, {"kind": "record", "list": "x", "row": 3}, {"kind": 1}]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "record", "l'
    with path.open("a") as file:
        file.write(text)
    before = path.read_bytes()
    with Journal(folder / "other.jsonl"):
        shared = SharedLists()
        shared.read(folder)
    assert shared.knows(made)
    assert path.read_bytes() == before
    absent = SharedLists()
    absent.read(tmp_path / "absent")
    assert not absent.knows(made)


def test_what_is_thrown_away_is_not_shared(tmp_path: Path) -> None:
    made = task([A, B])
    journalled(tmp_path / "one", decided(made, 10.0, 5.0))
    shared = SharedLists()
    shared.read(tmp_path / "one", fresh=True)
    assert not shared.knows(made)


def test_ceilings_are_measured_once(tmp_path: Path) -> None:
    shared = SharedLists()
    with Journal(tmp_path / "one" / "journal.jsonl") as journal:
        Recall(journal, (), sharing=Sharing(shared)).keep_ceilings({"copy_gb_s": 10.0})
    with Journal(tmp_path / "two" / "journal.jsonl") as journal:
        assert Recall(journal, (), sharing=Sharing(shared)).ceilings == {
            "copy_gb_s": 10.0
        }
    again = SharedLists()
    again.read(tmp_path / "one")
    assert again.ceilings == {"copy_gb_s": 10.0}


def test_kernels_are_compiled_once(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    shared = SharedLists()
    for work in (one, two):
        shared.read(work)
    files = {"k/x.so": b"library"}
    BuiltKernels(one / "built").keep(BuildResult("b", Status.OK, files=files))
    tasks = [task([A, B, C])]
    first, second = Sharing(shared), Sharing(shared)
    assert first.take_kernels(tasks, one / "built", every=True) == 0
    assert second.take_kernels(tasks, two / "built", every=True) == 1
    found = BuiltKernels(two / "built").find("b")
    assert found is not None
    assert found.files == files
    assert (len(first.taken), len(second.taken)) == (0, 1)
    # It has them now.
    assert Sharing(shared).take_kernels(tasks, two / "built", every=True) == 0


def test_kernels_that_are_going_to_be_thrown_away_are_not_taken(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    shared = SharedLists()
    shared.read(one, fresh=True)
    BuiltKernels(one / "built").keep(BuildResult("b", Status.OK, files={"f": b"x"}))
    tasks = [task([A, B])]
    assert Sharing(shared).take_kernels(tasks, two / "built", every=True) == 0
    # Its own turn has come: what is there now was compiled anew.
    Sharing(shared).open_store(one)
    assert Sharing(shared).take_kernels(tasks, two / "built", every=True) == 1


def test_a_list_that_is_decided_needs_no_kernels(tmp_path: Path) -> None:
    one, made = tmp_path / "one", task([A, B])
    shared = SharedLists()
    shared.read(one)
    BuiltKernels(one / "built").keep(BuildResult("b", Status.OK, files={"f": b"x"}))
    shared.add(list_id(made), decided(made, 10.0, 5.0).records)
    two = tmp_path / "two" / "built"
    assert Sharing(shared).take_kernels([made], two, every=False) == 0
    assert not two.exists()


@pytest.mark.parametrize(
    ("policy", "asked", "same"),
    [
        ({"tokens": (1, 8), "attention": "sdpa"}, {"tp": 2, "model": "other"}, True),
        ({"name": "frozen"}, {}, False),
        ({"threads": 1}, {}, False),
        ({}, {"search": "exhaustive"}, False),
    ],
)
def test_who_shares(
    target: Target,
    tmp_path: Path,
    policy: dict[str, Any],
    asked: dict[str, Any],
    same: bool,
) -> None:
    first = sharing_key(plan_in(tmp_path, target), options(tmp_path))
    other = plan_in(tmp_path, target, **policy)
    assert (sharing_key(other, options(tmp_path, **asked)) == first) is same


def test_another_target_does_not_share(target: Target, tmp_path: Path) -> None:
    other = Target({**target.hardware, "isa": ["avx2"]}, target.software)
    first = sharing_key(plan_in(tmp_path, target), options(tmp_path))
    assert sharing_key(plan_in(tmp_path, other), options(tmp_path)) != first
