"""The lists of an older bundle in another environment, by fakes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import BUDGET, Status
from flytune.caches.host import Part
from flytune.caches.lists import lists_of
from flytune.caches.records import TuningRecord
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import TRITON, BuildResult, Candidate, RunResult, TuneTask
from flytune.tuner.decision import Decision, decide
from flytune.tuner.overlap import Timed
from flytune.tuner.survival import Changes, changes
from flytune.tuner.upgrade import OLDER, Known, Upgrade, settled

HARDWARE: dict[str, Part] = {"kind": "cuda", "vendor": "nvidia", "product": "H200"}
SOFTWARE: dict[str, Part] = {
    **{"torch": "2.15.0", "triton": "3.8.0", "driver": "580.1", "cuda": "13.0"},
    **{"flydsl": "absent", "compiler": "g++: 12"},
}
TRITON_MOVED = {"triton": "3.9.0"}
# Three that lead, and four that do not.
TIMES = {"library": 11.0, "a": 10.0, "b": 12.0, "c": 20.0, "d": 21.0, "e": 22.0}


def named(names: Sequence[str], suffix: str) -> list[Candidate]:
    """Candidates whose hashes are of one release of torch, and whose names are not."""
    made = [
        library() if name == "library" else candidate(name, TRITON) for name in names
    ]
    return [replace(one, choice_hash=one.choice_hash + suffix) for one in made]


def offered(suffix: str, names: Sequence[str] = tuple(TIMES), **more: Any) -> TuneTask:
    return task(named(names, suffix), inputs_key=f"key{suffix}", **more)


def built(made: TuneTask, code: str = "code") -> dict[str, BuildResult]:
    """What is compiled of a list; the library's is not."""
    return {
        c.choice_hash: BuildResult(
            c.choice_hash,
            Status.OK,
            files={"k.cubin": f"{code} {c.config}".encode()}
            if c.backend == TRITON
            else {},
        )
        for c in made.offered.candidates
    }


def timed(
    made: TuneTask,
    times: Mapping[str, float | None],
    builds: Mapping[str, BuildResult] | None = None,
) -> Timed:
    """One race; None for a candidate that died."""
    results = []
    for one in made.offered.candidates:
        us = times[one.choice_hash.partition("-")[0]]
        if us is None:
            results.append(RunResult(one.choice_hash, Status.FAULT, "it died"))
        else:
            samples = (us, us * 1.001) * 8
            results.append(
                RunResult(one.choice_hash, Status.OK, samples_us=samples, batch_s=6.0)
            )
    made_of = builds or built(made)
    each = tuple(made_of[c.choice_hash] for c in made.offered.candidates)
    return Timed(made, each, tuple(results))


OLD = offered("-old")
NEW = offered("-new")
DECIDED: Decision = decide(*timed(OLD, TIMES))


def changed(**software: Part) -> Changes:
    before = Target(HARDWARE, SOFTWARE)
    return changes(before, Target(HARDWARE, {**SOFTWARE, **software}))


def upgrade(
    records: Sequence[TuningRecord] = DECIDED.records, **software: Part
) -> Upgrade:
    return Upgrade(lists_of(records), changed(**(software or TRITON_MOVED)))


def known(
    made: TuneTask = NEW, records: Sequence[TuningRecord] = DECIDED.records
) -> Known:
    found = upgrade(records).known(made)
    assert found is not None
    return found


def test_a_list_is_known_again_by_what_its_candidates_are() -> None:
    found = known()
    assert found.winner == "a-new"
    assert found.older["c-new"].choice_hash == "c-old"
    # The winner, two runners-up; each backend's best is among them.
    assert found.front == {"a-new", "library-new", "b-new"}
    names = [c.choice_hash for c in found.first.offered.candidates]
    assert names == ["library-new", "a-new", "b-new"]


def test_the_best_of_each_backend_is_in_front() -> None:
    times = {**TIMES, "library": 40.0}
    found = known(records=decide(*timed(OLD, times)).records)
    assert found.front == {"a-new", "b-new", "c-new", "library-new"}


def test_what_is_tied_is_in_front() -> None:
    times = {**TIMES, **dict.fromkeys(("b", "c", "d", "e"), 10.01)}
    found = known(records=decide(*timed(OLD, times)).records)
    assert found.front == {"a-new", "b-new", "c-new", "d-new", "e-new"} | {
        "library-new"
    }


def test_what_the_older_bundle_does_not_know_is_in_front() -> None:
    found = known(offered("-new", (*TIMES, "f")))
    assert "f-new" in found.front
    assert "f-new" not in found.older


def test_what_failed_by_chance_is_in_front_and_what_failed_is_not() -> None:
    for status, first in ((Status.TIMEOUT, True), (Status.WRONG_RESULT, False)):
        records = [
            replace(r, status=status, reason="x", median_us=None, samples_us=())
            if r.choice_hash == "e-old"
            else r
            for r in DECIDED.records
        ]
        assert ("e-new" in known(records=records).front) == first


@pytest.mark.parametrize(
    "made",
    [
        offered("-new", m=32),
        offered("-new", ("library", "b", "c")),
        task(named(tuple(TIMES), "-new"), module="another", inputs_key="key-new"),
    ],
)
def test_another_list_is_not_known(made: TuneTask) -> None:
    assert upgrade().known(made) is None


def test_what_was_not_decided_by_times_is_not_known() -> None:
    untimed = [replace(r, median_us=None, samples_us=()) for r in DECIDED.records]
    for records in (untimed, [replace(r, winner=False) for r in DECIDED.records], []):
        assert upgrade(records).known(NEW) is None


def test_what_a_budget_cut_short_is_not_known() -> None:
    left = replace(DECIDED.records[-1], median_us=None, samples_us=(), pruned_by=BUDGET)
    assert upgrade([*DECIDED.records[:-1], left]).known(NEW) is None
    # What a model has left out is decided.
    by_model = replace(left, pruned_by="model")
    assert upgrade([*DECIDED.records[:-1], by_model]).known(NEW) is not None


def test_candidates_that_hashes_alone_tell_apart_are_not_known() -> None:
    twin = replace(DECIDED.records[-1], choice_hash="twin-old")
    assert upgrade([*DECIDED.records, twin]).known(NEW) is None


def test_the_same_bytes_keep_their_times() -> None:
    found = known()
    decision = upgrade().standing(found, built(found.first))
    assert decision is not None
    assert decision.task == NEW
    by_hash = {r.choice_hash: r for r in decision.records}
    assert decision.winner.choice_hash == "a-new"
    assert by_hash["a-new"].samples_us == DECIDED.winner.samples_us
    assert by_hash["b-new"].inputs_key == "key-new"
    left = by_hash["c-new"]
    assert (left.pruned_by, left.median_us, left.predicted_us) == (
        *(OLDER, None),
        pytest.approx(20.01),
    )
    assert (left.status, left.kernel_digest, left.samples_us) == (Status.OK, None, ())
    # What has no time can never be chosen.
    ms = decision.milliseconds()
    assert ms["c-new"] == float("inf")
    assert min(ms, key=lambda name: ms[name]) == "a-new"


@pytest.mark.parametrize(
    "software",
    [{"driver": "590.1"}, {"cuda": "13.1"}, {"torch": "2.16.0"}],
)
def test_times_of_another_driver_or_library_do_not_stand(
    software: dict[str, Part],
) -> None:
    found = known()
    assert upgrade(**software).standing(found, built(found.first)) is None


def test_other_bytes_do_not_stand() -> None:
    found = known()
    assert upgrade().standing(found, built(found.first, "other")) is None
    builds = built(found.first)
    builds["b-new"] = BuildResult("b-new", Status.COMPILE_ERROR, "no")
    assert upgrade().standing(found, builds) is None
    more = known(offered("-new", (*TIMES, "f")))
    assert upgrade().standing(more, built(more.first)) is None


def test_times_that_others_recorded_do_not_stand() -> None:
    recorded = [replace(r, source="table.csv") for r in DECIDED.records]
    found = known(records=recorded)
    assert upgrade(recorded).standing(found, built(found.first)) is None


def after(**times: float | None) -> Decision | None:
    found = known()
    return settled(found, timed(found.first, {**TIMES, **times}))


def test_a_front_that_has_not_moved_decides() -> None:
    # All of it slower by a tenth, as on another day.
    decision = after(library=12.1, a=11.0, b=13.2)
    assert decision is not None
    assert decision.winner.choice_hash == "a-new"
    rows = {r.choice_hash: r.pruned_by for r in decision.records}
    assert rows == {
        **dict.fromkeys(("library-new", "a-new", "b-new")),
        **dict.fromkeys(("c-new", "d-new", "e-new"), OLDER),
    }
    assert [r.choice_hash for r in decision.records] == [
        c.choice_hash for c in NEW.offered.candidates
    ]


@pytest.mark.parametrize(
    "times",
    [
        {"a": 11.5},
        {"b": 12.6},
        {"library": 10.5},
        {"a": None},
        {"library": None, "a": None, "b": None},
    ],
)
def test_a_front_that_has_moved_does_not(times: dict[str, float | None]) -> None:
    assert after(**times) is None


def test_a_front_that_is_all_of_the_list_decides() -> None:
    small = ("library", "a")
    found = known(
        offered("-new", small), decide(*timed(offered("-old", small), TIMES)).records
    )
    decision = settled(found, timed(found.first, {"library": 9.0, "a": None}))
    assert decision is not None
    assert decision.winner.choice_hash == "library-new"


def test_a_runner_up_that_fails_is_a_row() -> None:
    decision = after(b=None)
    assert decision is not None
    (row,) = (r for r in decision.records if r.choice_hash == "b-new")
    assert row.status is Status.FAULT


def test_noise_is_no_move() -> None:
    found = known()
    noisy = timed(found.first, TIMES)
    results = tuple(
        replace(r, samples_us=tuple(us * f for us in r.samples_us[:4] for f in SPREAD))
        for r in noisy.results
    )
    slower = replace(
        results[2], samples_us=tuple(us * 1.05 for us in results[2].samples_us)
    )
    noisy = noisy._replace(results=(*results[:2], slower))
    assert settled(found, noisy) is not None


SPREAD = (0.8, 0.9, 1.1, 1.2)


def test_what_is_left_out_once_is_left_out_again() -> None:
    found = known()
    first = upgrade().standing(found, built(found.first))
    assert first is not None
    again = known(offered("-again"), first.records)
    assert again.front == {"library-again", "a-again", "b-again"}
    second = upgrade(first.records).standing(again, built(again.first))
    assert second is not None
    (row,) = (r for r in second.records if r.choice_hash == "c-again")
    assert (row.pruned_by, row.predicted_us) == (OLDER, pytest.approx(20.01))


@pytest.mark.parametrize(
    ("software", "touched"),
    [
        ({}, set()),
        ({"triton": "3.9.0"}, {"triton", "graphs"}),
        ({"torch": "2.16.0"}, {"triton", "flydsl", "cpp", "library", "graphs"}),
        ({"cuda": "13.1"}, {"library", "graphs"}),
        ({"driver": "590.1"}, {"times"}),
        ({"glibc": "2.40"}, set()),
        ({"compiler": "clang: 17"}, set()),
    ],
)
def test_what_a_change_touches(software: dict[str, Part], touched: set[str]) -> None:
    found = changed(**software)
    by_name = {
        name: found.kernels(name) for name in ("aten", "triton", "flydsl", "cpp")
    }
    by_name |= {"library": found.library, "graphs": found.graphs, "times": found.times}
    assert {name for name, parts in by_name.items() if parts} == touched
    assert bool(found) == bool(touched)


def test_a_version_says_it_all() -> None:
    """What is known of the build later is no news then."""
    keyed = Target(HARDWARE, {**SOFTWARE, "triton_key": "a", "torch_key": "a"})
    other = {**keyed.software, "triton": "3.9.0", "triton_key": "b"}
    found = changes(keyed, Target(HARDWARE, other))
    assert [part.part for part in found.parts] == ["software.triton"]
    found = changes(keyed, Target(HARDWARE, {**keyed.software, "triton_key": "b"}))
    assert [part.part for part in found.parts] == ["software.triton_key"]


def test_a_compiler_is_of_cpp_kernels() -> None:
    hardware: dict[str, Part] = {"kind": "cpu", "isa": ("avx2",)}
    here = Target(hardware, {**SOFTWARE, "compiler": "g++-13: 13", "triton": "3.9.0"})
    found = changes(Target(hardware, SOFTWARE), here)
    assert [part.part for part in found.parts] == ["software.compiler"]
    assert found.kernels("cpp")
    assert not found.library


def test_other_hardware_is_refused() -> None:
    other = Target({**HARDWARE, "compute_units": 114}, SOFTWARE)
    here = Target({**HARDWARE, "compute_units": 132}, SOFTWARE)
    with pytest.raises(FlytuneError, match=r"hardware\.compute_units: built for `114`"):
        changes(other, here)


def test_a_tie_goes_to_the_winner_of_before() -> None:
    tie = {**TIMES, "library": 10.01, "a": 10.0}
    first = decide(*timed(OLD, tie))
    assert first.winner.choice_hash == "library-old"
    # It won by its times, and now it is one of two.
    found = known(records=decide(*timed(OLD, {**TIMES, "library": 10.3})).records)
    decision = settled(found, timed(found.first, {**TIMES, "library": 10.15}))
    assert decision is not None
    assert decision.winner.choice_hash == "a-new"


def test_where_no_device_was_there_were_no_times() -> None:
    before = Target(HARDWARE, {**SOFTWARE, "driver": "absent"})
    assert not changes(before, Target(HARDWARE, SOFTWARE))
