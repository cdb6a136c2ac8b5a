"""The order of an upgrade's work: what is compiled, what is timed, and what is not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import Status
from flytune.caches.host import Part
from flytune.caches.lists import lists_of
from flytune.caches.target import Target
from flytune.tuner import search as stage
from flytune.tuner.candidate import TRITON, BuildResult, RunResult, TuneTask
from flytune.tuner.decision import Decision, decide
from flytune.tuner.journal import Journal
from flytune.tuner.overlap import Timed
from flytune.tuner.progress import Progress
from flytune.tuner.runner import Device
from flytune.tuner.survival import changes
from flytune.tuner.upgrade import OLDER, Upgrade

HARDWARE: dict[str, Part] = {"kind": "cuda", "vendor": "nvidia"}
SAME, FRONT, MOVED, NEW = 16, 32, 64, 128
"""Rows of A, by what becomes of each list."""
TIMES = {"library": 11.0, "a": 10.0, "b": 12.0, "c": 20.0, "d": 21.0}


def offered(m: int, suffix: str) -> TuneTask:
    kinds = [library(), *(candidate(n, TRITON) for n in TIMES if n != "library")]
    # A template's hash is of its source, which holds the sizes.
    made = [replace(c, choice_hash=f"{c.choice_hash}-{m}{suffix}") for c in kinds]
    return task(made, m=m, inputs_key=f"{m}{suffix}")


def results(made: TuneTask, times: Mapping[str, float]) -> tuple[RunResult, ...]:
    return tuple(
        RunResult(c.choice_hash, Status.OK, samples_us=(us, us * 1.001) * 8)
        for c in made.offered.candidates
        for us in [times[c.choice_hash.partition("-")[0]]]
    )


def compiled(made: TuneTask, code: bytes) -> dict[str, BuildResult]:
    return {
        c.choice_hash: BuildResult(c.choice_hash, Status.OK, files={"k.cubin": code})
        if c.backend == TRITON
        else BuildResult(c.choice_hash, Status.OK)
        for c in made.offered.candidates
    }


def older(m: int) -> Decision:
    made = offered(m, "")
    builds = compiled(made, b"old")
    in_order = [builds[c.choice_hash] for c in made.offered.candidates]
    return decide(made, in_order, results(made, TIMES))


class FakeWork:
    """Compiles to the same bytes for one list, and remembers what it was asked."""

    def __init__(self, *_: object) -> None:
        asked.clear()

    def built(self, tasks: Sequence[TuneTask]) -> dict[str, BuildResult]:
        found: dict[str, BuildResult] = {}
        for made in tasks:
            m = made.shape.m
            asked.append(("build", m, len(made.offered.candidates)))
            found |= compiled(made, b"old" if m == SAME else b"new")
        return found

    def timed(self, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        for made in tasks:
            m = made.shape.m
            asked.append(("time", m, len(made.offered.candidates)))
            builds = compiled(made, b"new")
            times = {**TIMES, **({"b": 8.0} if m == MOVED else {})}
            in_order = tuple(builds[c.choice_hash] for c in made.offered.candidates)
            yield Timed(made, in_order, results(made, times))

    def ceilings(self, _: object) -> dict[str, Any]:
        return {}


asked: list[tuple[str, int, int]] = []


@pytest.fixture
def searched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> tuple[tuple[Decision, ...], str]:
    """The decisions of an upgrade, and what was said."""
    monkeypatch.setattr(stage, "Work", FakeWork)
    monkeypatch.setattr(
        stage, "device_of", lambda _: Device("H200", cache_bytes=1, rotation_bytes=1)
    )
    before = Target(HARDWARE, {"triton": "3.8.0"})
    changed = changes(before, Target(HARDWARE, {"triton": "3.9.0"}))
    records = [r for m in (SAME, FRONT, MOVED) for r in older(m).records]
    tasks = [offered(m, "-new") for m in (SAME, FRONT, MOVED, NEW)]
    plan: Any = None
    options: Any = SimpleNamespace(work=tmp_path, exclude=(), search="default")
    with Journal(tmp_path / "journal.jsonl") as journal:
        found = stage.search(
            *(plan, tasks, options, journal, (), lambda: None, Progress()),  # type: ignore[arg-type]
            upgrade=Upgrade(lists_of(records), changed),
        )
        # What was decided is not asked for again.
        again = stage.search(
            *(plan, tasks, options, journal, (), lambda: 1 / 0, Progress()),  # type: ignore[arg-type]
            upgrade=Upgrade(lists_of(records), changed),
        )
    assert again.decisions == found.decisions
    return found.decisions, capsys.readouterr().err


def test_what_is_compiled_and_timed(
    searched: tuple[tuple[Decision, ...], str],
) -> None:
    assert asked == [
        *(("build", SAME, 3), ("build", FRONT, 3), ("build", MOVED, 3)),
        *(("time", FRONT, 3), ("time", MOVED, 3)),
        *(("time", MOVED, 5), ("time", NEW, 5)),
    ]
    _, told = searched
    assert "upgrade: 3 lists are known; 9 of their 15 candidates come first" in told
    assert (
        "upgrade: lists that stand as they were: 1; that their front decides: 1; "
        "whose front has moved, timed whole: 1" in told
    )


def test_each_list_is_decided(
    searched: tuple[tuple[Decision, ...], str],
) -> None:
    decisions, _ = searched
    left = [sum(r.pruned_by == OLDER for r in d.records) for d in decisions]
    assert left == [2, 2, 0, 0]
    winners = [d.winner.choice_hash for d in decisions]
    assert winners == ["a-16-new", "a-32-new", "b-64-new", "a-128-new"]
    assert [d.task.shape.m for d in decisions] == [SAME, FRONT, MOVED, NEW]
    # What was not timed now was not decided now.
    assert [d.winner.at_s is None for d in decisions] == [True, False, False, False]
