from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import Status
from flytune.caches.records import TuningRecord, read_records, write_records
from flytune.shapes.errors import FlytuneError
from flytune.tuner.built_kernels import BuiltKernels
from flytune.tuner.candidate import BuildResult, Candidate, RunResult, TuneTask
from flytune.tuner.decision import Decision, decide
from flytune.tuner.journal import Journal
from flytune.tuner.recall import Recall, list_id

A, B, C = library("a"), candidate("b"), candidate("c")


def decided(made: TuneTask, *times_us: float | None) -> Decision:
    """Decide a task from one time a candidate; None for one that failed."""
    builds, results = [], []
    for one, time_us in zip(made.offered.candidates, times_us, strict=True):
        name = one.choice_hash
        builds.append(BuildResult(name, Status.OK, compile_s=1.0))
        if time_us is None:
            results.append(RunResult(name, Status.FAULT, "it died"))
        else:
            results.append(RunResult(name, Status.OK, samples_us=(time_us,) * 9))
    return decide(made, builds, results)


def recalled(
    path: Path, made: TuneTask, older: Iterable[TuningRecord] = ()
) -> Decision | None:
    with Journal(path) as journal:
        return Recall(journal, older).decision(made)


def keep(path: Path, *decisions: Decision) -> None:
    with Journal(path) as journal:
        for decision in decisions:
            Recall(journal, ()).keep(decision)


def test_a_decision_comes_back_the_same(tmp_path: Path) -> None:
    path, made = tmp_path / "journal", task([A, B, C])
    decision = decided(made, 10.0, 5.0, None)
    assert recalled(path, made) is None
    keep(path, decision)
    assert recalled(path, made) == decision
    assert decision.winner.choice_hash == "b"


def test_the_order_of_the_list_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    keep(path, decided(task([A, B]), 10.0, 5.0))
    again = recalled(path, task([B, A]))
    assert again is not None
    assert [r.choice_hash for r in again.records] == ["b", "a"]
    assert again.winner.choice_hash == "b"


@pytest.mark.parametrize("other", [[A, B, C], [A], [A, C]])
def test_a_list_with_other_candidates_is_another(
    tmp_path: Path, other: list[Candidate]
) -> None:
    path = tmp_path / "journal"
    decision = decided(task([A, B]), 10.0, 5.0)
    keep(path, decision)
    assert recalled(path, task(other)) is None
    nothing = tmp_path / "nothing"
    assert recalled(nothing, task(other), decision.records) is None


@pytest.mark.parametrize(
    "changes", [{"m": 32}, {"op": "addmm"}, {"precision": "high"}, {"inputs_key": "x"}]
)
def test_a_list_with_another_key_is_another(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    path = tmp_path / "journal"
    decision = decided(task([A, B]), 10.0, 5.0)
    keep(path, decision)
    assert recalled(path, task([A, B], **changes)) is None
    assert recalled(tmp_path / "x", task([A, B], **changes), decision.records) is None


def test_half_a_decision_is_none(tmp_path: Path) -> None:
    path, made = tmp_path / "journal", task([A, B])
    keep(path, decided(made, 10.0, 5.0))
    lines = path.read_bytes().splitlines(keepends=True)
    for left in lines:
        path.write_bytes(left)
        assert recalled(path, made) is None


def test_the_latest_rows_of_a_list_count(tmp_path: Path) -> None:
    path, made = tmp_path / "journal", task([A, B])
    keep(path, decided(made, 10.0, 5.0), decided(made, 4.0, 5.0))
    again = recalled(path, made)
    assert again is not None
    assert again.winner.choice_hash == "a"


def test_an_older_bundle_answers_and_the_journal_comes_first(tmp_path: Path) -> None:
    made = task([A, B])
    write_records(decided(made, 10.0, 5.0).records, tmp_path / "records.parquet")
    older = read_records(tmp_path / "records.parquet")
    path = tmp_path / "journal"
    again = recalled(path, made, older)
    assert again is not None
    assert again.winner.choice_hash == "b"
    keep(path, decided(made, 4.0, 5.0))
    again = recalled(path, made, older)
    assert again is not None
    assert again.winner.choice_hash == "a"


def test_the_moment_of_another_builds_decision_is_none_of_this_one(
    tmp_path: Path,
) -> None:
    made = task([A, B])
    here = decided(made, 2.0, 1.0)
    older = here.decided_at(7.0)
    with Journal(tmp_path / "journal.jsonl") as journal:
        assert Recall(journal, older.records).decision(made) == here
        Recall(journal, ()).keep(older)
        assert Recall(journal, ()).decision(made) == older


def test_lists_that_share_key_and_candidate_are_told_apart(tmp_path: Path) -> None:
    gate = decided(task([A, B], "gate"), 10.0, 5.0)
    up = decided(task([A, C], "up"), 4.0, 5.0)
    older = [*gate.records, *up.records]
    for decision in (gate, up):
        assert recalled(tmp_path / "journal", decision.task, older) == decision


def test_lists_of_one_module_that_cannot_be_told_apart_are_timed(
    tmp_path: Path,
) -> None:
    one, other = decided(task([A, B]), 10.0, 5.0), decided(task([A, C]), 4.0, 5.0)
    older = [*one.records, *other.records]
    assert recalled(tmp_path / "journal", one.task, older) is None


def test_older_records_without_one_winner_are_no_decision(tmp_path: Path) -> None:
    decision = decided(task([A, B]), 10.0, 5.0)
    for winner in (True, False):
        older = [replace(record, winner=winner) for record in decision.records]
        assert recalled(tmp_path / "journal", decision.task, older) is None


@pytest.mark.parametrize(
    ("status", "again"),
    [
        (Status.TIMEOUT, True),
        (Status.OUT_OF_MEMORY, True),
        (Status.FAULT, False),
        (Status.WRONG_RESULT, False),
    ],
)
def test_what_failed_by_chance_is_timed_again(
    tmp_path: Path, status: Status, again: bool
) -> None:
    made = task([A, B])
    decision = decided(made, 10.0, None)
    records = tuple(
        r if r.winner else replace(r, status=status) for r in decision.records
    )
    failed = Decision(made, records)
    expected = None if again else failed
    assert recalled(tmp_path / "older", made, failed.records) == expected
    keep(tmp_path / "journal", failed)
    assert recalled(tmp_path / "journal", made) == expected


@pytest.mark.parametrize(
    "entry", [{}, {"list": "x"}, {"list": "x", "row": {}}, {"list": "x", "row": 3}]
)
def test_journal_rows_of_another_version_are_counted_and_passed_over(
    tmp_path: Path, entry: dict[str, object]
) -> None:
    path, decision = tmp_path / "journal", decided(task([A, B]), 10.0, 5.0)
    with Journal(path) as journal:
        journal.add_all([("record", entry)])
    keep(path, decision)
    with Journal(path) as journal:
        recall = Recall(journal, ())
    assert recall.unreadable == 1
    assert recall.decision(decision.task) == decision


def test_the_name_of_a_list_is_the_same_in_every_process() -> None:
    assert list_id(task([A, B])) == "1f48d68f2ca89c5f"
    assert list_id(task([B, A])) == list_id(task([A, B]))
    assert list_id(task([A, C])) != list_id(task([A, B]))


BUILT = BuildResult(
    "hash/with spaces",
    Status.OK,
    compile_s=2.5,
    files={"ab/c.so": b"\x00library", "ab/c.cpp": b"source"},
)


def test_what_was_built_comes_back(tmp_path: Path) -> None:
    store = BuiltKernels(tmp_path)
    assert store.find(BUILT.choice_hash) is None
    store.keep(BUILT)
    assert BuiltKernels(tmp_path).find(BUILT.choice_hash) == BUILT
    assert store.find("another") is None


def test_a_failure_is_not_stored(tmp_path: Path) -> None:
    store = BuiltKernels(tmp_path)
    store.keep(BuildResult("x", Status.TIMEOUT, "no result in 1 s"))
    assert store.find("x") is None
    assert list(tmp_path.iterdir()) == []


def spoilt(kind: str, root: Path) -> None:
    library_file, row = next(root.rglob("c.so")), next(root.rglob("built.json"))
    match kind:
        case "file absent":
            library_file.unlink()
        case "file cut":
            library_file.write_bytes(b"\x00lib")
        case "file empty":
            library_file.write_bytes(b"")
        case "row absent":
            row.unlink()
        case "row torn":
            row.write_bytes(row.read_bytes()[:10])
        case _:
            row.write_text(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "file absent",
        "file cut",
        "file empty",
        "row absent",
        "row torn",
        "3",
        "{}",
        '{"seconds": 1, "files": 3}',
        '{"seconds": null, "files": {}}',
        '{"seconds": 1, "files": ["ab/c.so"]}',
    ],
)
def test_spoilt_kernels_are_built_again(tmp_path: Path, kind: str) -> None:
    store = BuiltKernels(tmp_path)
    store.keep(BUILT)
    spoilt(kind, tmp_path)
    assert store.find(BUILT.choice_hash) is None
    store.keep(BUILT)
    assert store.find(BUILT.choice_hash) == BUILT


def test_kernels_that_cannot_be_kept_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "built").touch()
    with pytest.raises(FlytuneError, match="cannot keep what was built"):
        BuiltKernels(tmp_path / "built").keep(BUILT)
