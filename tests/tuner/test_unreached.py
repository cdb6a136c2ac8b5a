"""What a budget did not reach: the library's, marked, and never taken for decided."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import BUDGET, Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult
from flytune.tuner.decision import lone, timings
from flytune.tuner.journal import Journal
from flytune.tuner.recall import Recall
from flytune.tuner.unreached import (
    UNREACHED,
    is_cut,
    is_cut_short,
    library_of,
    unreached,
)


def test_it_gets_the_librarys_kernel_by_the_fixed_order() -> None:
    made = task([candidate("x"), library("b"), library("a")])
    decision = unreached(made, {})
    assert (decision.winner.choice_hash, decision.winner.reason) == ("a", UNREACHED)
    assert {r.pruned_by for r in decision.records} == {BUDGET}
    assert {r.status for r in decision.records} == {Status.OK}
    assert is_cut(decision)
    assert not decision.was_timed
    times = {timing.choice_hash: timing.ms for timing in timings([decision])}
    assert times == {"a": 1.0, "b": float("inf"), "x": float("inf")}


def test_what_may_not_be_tried_says_so() -> None:
    made = task([library("a"), library("b"), candidate("x")])
    refused = {n: BuildResult(n, Status.FAULT, "excluded") for n in ("a", "x")}
    decision = unreached(made, refused)
    assert decision.winner.choice_hash == "b"
    rows = {r.choice_hash: (r.status, r.reason) for r in decision.records}
    assert rows["x"] == (Status.FAULT, "excluded")
    both = refused | {"b": BuildResult("b", Status.FAULT, "excluded")}
    assert library_of(made, both) is None
    with pytest.raises(FlytuneError, match=r"no candidate survived .*: fault: excl"):
        unreached(made, both)


def test_no_later_build_takes_it_for_a_decision(tmp_path: Path) -> None:
    made = task([library(), candidate("x")])
    cut = unreached(made, {})
    with Journal(tmp_path / "journal.jsonl") as journal:
        assert Recall(journal, cut.records).decision(made) is None
        plain = [replace(record, pruned_by=None) for record in cut.records]
        assert Recall(journal, plain).decision(made) is not None
    assert not is_cut(lone(task([library()])))


def test_what_is_no_bundle_was_not_cut_short(tmp_path: Path) -> None:
    (tmp_path / "b.tar.zst").write_bytes(b"no bundle")
    assert not is_cut_short(tmp_path / "b.tar.zst")
    assert not is_cut_short(tmp_path / "absent")
