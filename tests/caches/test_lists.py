"""The candidate lists of a bundle's records."""

from dataclasses import replace
from typing import Any

import pytest
import small_reports
from bundles import manifest
from small_reports import UP

from flytune.caches.lists import calls_of, lists_of
from flytune.caches.records import Status, TuningRecord


def record(name: str, *samples_us: float, **more: Any) -> TuningRecord:
    median = sorted(samples_us)[len(samples_us) // 2] if samples_us else None
    columns = {"samples_us": samples_us, "inputs_key": "k", "mad_us": None}
    return small_reports.record(UP, name, median, **(columns | more))


def test_records_of_one_list_are_together_wherever_they_stand() -> None:
    first, other = record("a", 2.0), record("b", 1.0, inputs_key="another")
    last = record("c", 1.5)
    lists = lists_of([first, other, last])
    assert [[r.choice_hash for r in one.records] for one in lists] == [
        ["a", "c"],
        ["b"],
    ]
    assert lists[0].name == "mm (16, 4096, 1024) at layers.*.mlp.up_proj"
    assert (lists[0].shape, lists[0].shape.count) == (UP, 32)


def test_lists_of_one_key_are_told_apart_by_when_they_were_decided() -> None:
    rows = [record("a", 2.0), record("b", 1.0), record("c", 1.5), record("d", 2.5)]
    times = (3.0, 3.0, 7.5, 7.5)
    decided = [replace(r, at_s=at) for r, at in zip(rows, times, strict=True)]
    lists = lists_of(decided)
    assert [[r.choice_hash for r in one.records] for one in lists] == [
        ["a", "b"],
        ["c", "d"],
    ]


def test_the_order_is_by_time_and_what_has_none_is_last() -> None:
    failed = record("a", status=Status.FAULT, reason="died")
    (one,) = lists_of([failed, record("b", 3.0), record("c", 2.0, winner=True)])
    assert [r.choice_hash for r in one.ranked] == ["c", "b", "a"]
    assert [r.choice_hash for r in one.timed()] == ["c", "b"]
    assert one.winner is not None
    assert one.winner.choice_hash == "c"


def test_the_best_of_a_backend_is_its_fastest_with_a_time() -> None:
    aten = record("a", 3.0, backend="aten")
    (one,) = lists_of([aten, record("b", 5.0), record("c", 4.0)])
    best = one.best_of("triton")
    assert best is not None
    assert best.choice_hash == "c"
    assert one.best_of("flydsl") is None


def test_a_candidate_that_left_the_race_is_no_tie() -> None:
    near = record("a", *[10.0, 10.1] * 10)
    best, far = record("b", *[10.1, 10.0] * 10), record("c", 10.0, pruned_by="race")
    (one,) = lists_of([near, best, far, record("d", *[15.0, 15.1] * 10)])
    assert {r.choice_hash for r in one.tied} == {"a", "b"}


def test_times_that_were_not_taken_together_are_no_tie() -> None:
    (one,) = lists_of([record("a", 10.0, 10.0), record("b", 10.0)])
    assert one.tied == ()


def test_another_release_of_torch_offers_the_same_list() -> None:
    (old,) = lists_of([record("a", 1.0)])
    again = record("z", 1.0, inputs_key="other")
    (new,) = lists_of([replace(again, count=64)])
    assert old.identity == new.identity
    wider = replace(old.records[0], n=8192)
    assert lists_of([wider])[0].identity != old.identity


@pytest.mark.parametrize(
    ("row", "calls"),
    [
        # Before winners had counts the records counted the first module's calls.
        ({}, {UP.module: 32, "gate": 32}),
        ({"counts": [30, 2]}, {UP.module: 30, "gate": 2}),
        ({"counts": [30]}, {UP.module: 32, "gate": 32}),
        ({"op": "addmm"}, {UP.module: 32}),
        ({"inputs_key": "another"}, {UP.module: 32}),
        ({"shape": "mm (1, 4096, 1024)"}, {UP.module: 32}),
        ({"modules": ["gate", UP.module]}, {UP.module: 32}),
        ({"modules": "gate"}, {UP.module: 32}),
    ],
)
def test_the_calls_of_each_module(row: dict[str, Any], calls: dict[str, int]) -> None:
    (one,) = lists_of([record("a", 2.0, winner=True)])
    whole = {
        **{"op": "mm", "inputs_key": "k", "shape": str(UP)},
        **{"modules": [UP.module, "gate"], **row},
    }
    assert calls_of(one, manifest(winners=(whole,))) == calls


def test_the_calls_of_a_list_of_no_known_module() -> None:
    (one,) = lists_of([replace(record("a", 2.0), module="", count=4)])
    assert calls_of(one, manifest()) == {"": 4}
