"""Candidates of one build key: compiled once, and a result for each."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import Status
from flytune.tuner.built_kernels import BUILT_NAME, BuiltKernels
from flytune.tuner.candidate import BuildResult, Candidate, TuneTask
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.progress import Progress
from flytune.tuner.quarantine import Quarantine
from flytune.tuner.work import Work


class FakeFarm:
    """Builds what it is asked for, and remembers that."""

    def __init__(self, **failing: Status) -> None:
        self.asked: list[str] = []
        self._failing = failing

    def build_all(
        self, candidates: Sequence[Candidate], *_: object
    ) -> Iterator[BuildResult | None]:
        for one in candidates:
            name = one.choice_hash
            self.asked.append(name)
            yield None
            if (status := self._failing.get(name)) is not None:
                yield BuildResult(name, status, "it failed")
            else:
                files = {f"kernel of {one.build_key or name}": b"code"}
                yield BuildResult(name, Status.OK, compile_s=2.0, files=files)


def keyed(name: str, build_key: str) -> Candidate:
    return replace(candidate(name), build_key=build_key)


TASKS = (
    task([library(), keyed("a16", "a"), keyed("b16", "b"), candidate("c")]),
    task([library(), keyed("a32", "a"), keyed("b32", "b")], m=32),
    task([library(), keyed("a64", "a")], m=64),
)


def built(
    folder: Path,
    farm: FakeFarm,
    tasks: Sequence[TuneTask] = TASKS,
    exclude: frozenset[str] = frozenset(),
) -> dict[str, BuildResult]:
    plan: Any = SimpleNamespace(work=folder)
    quarantine = Quarantine(folder / "quarantine", "device", exclude)
    made: Any = farm
    options: Any = None
    return dict(Work(made, plan, options, Progress(), quarantine).built(tasks))


def test_each_key_is_compiled_once_and_each_candidate_has_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    farm = FakeFarm()
    results = built(tmp_path, farm)
    assert farm.asked == ["a16", "b16", "c"]
    assert {name: " ".join(r.files) for name, r in results.items()} == {
        "library": "",
        **dict.fromkeys(("a16", "a32", "a64"), "kernel of a"),
        **dict.fromkeys(("b16", "b32"), "kernel of b"),
        "c": "kernel of c",
    }
    assert all(result.choice_hash == name for name, result in results.items())
    assert all(result.status is Status.OK for result in results.values())
    # Progress is of compilations.
    assert "build: 3 of 3" in capsys.readouterr().err


def test_a_failure_is_that_of_all_who_share_it(tmp_path: Path) -> None:
    results = built(tmp_path, FakeFarm(a16=Status.COMPILE_ERROR))
    for name in ("a16", "a32", "a64"):
        expected = BuildResult(name, Status.COMPILE_ERROR, "it failed")
        assert results[name] == expected
    assert results["b32"].status is Status.OK
    # It is tried again, once.
    again = FakeFarm()
    built(tmp_path, again)
    assert again.asked == ["a16"]


def test_later_runs_compile_no_key_again(tmp_path: Path) -> None:
    first = built(tmp_path, FakeFarm(), TASKS[:1])
    farm = FakeFarm()
    results = built(tmp_path, farm)
    assert farm.asked == []
    assert results["a64"] == replace(first["a16"], choice_hash="a64")
    assert len(list(tmp_path.rglob(BUILT_NAME))) == 3


def test_the_one_that_is_excluded_costs_the_others_nothing(tmp_path: Path) -> None:
    farm = FakeFarm()
    results = built(tmp_path, farm, exclude=frozenset(["a16"]))
    assert farm.asked == ["b16", "c", "a32"]
    assert results["a16"].status is not Status.OK
    assert results["a64"].status is Status.OK


def test_devices_that_come_and_go_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flytune.tuner import work as work_module
    from flytune.tuner import workers

    there = [{"a": 4}, {"a": 4, "b": 2}, {}, {"b": 2}]
    monkeypatch.setattr(workers, "_LOOK_S", -1.0)
    monkeypatch.setattr(workers, "require_head", lambda: None)
    monkeypatch.setattr(workers.Farm, "_gpus", lambda _: there.pop(0))
    monkeypatch.setattr(workers.Farm, "_runner", lambda *_: None)
    monkeypatch.setattr(workers.Farm, "_made", lambda *_: ())
    monkeypatch.setattr(work_module, "device_of", lambda _: None)
    plan: Any = SimpleNamespace(work=tmp_path)
    options: Any = None
    quarantine = Quarantine(tmp_path / "quarantine", "device", frozenset())
    held: list[int] = []
    farm = workers.Farm("auto", {}, Deadlines())
    work = Work(farm, plan, options, Progress(), quarantine, hold=held.append)
    while there:
        assert list(work._joined()) == []
    # Where there is none the last ones are counted on.
    assert held == [4, 6, 2]


def test_lists_are_complete_with_the_results_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While devices time, a list is begun as soon as all that it shares is built."""
    from flytune.tuner import work as module

    seen: list[BuildResult | None] = []

    def timed_while_building(
        tasks: object, built: object, building: Iterator[BuildResult | None], *_: object
    ) -> Iterator[Any]:
        seen.extend(building)
        return iter(())

    monkeypatch.setattr(module, "timed_while_building", timed_while_building)
    monkeypatch.setattr(module, "device_of", lambda _: None)
    plan: Any = SimpleNamespace(work=tmp_path, profile="of an accelerator")
    farm: Any = FakeFarm()
    runner = SimpleNamespace(start_soon=lambda: None, run=lambda *_, **__: ())
    farm.runners = lambda *_, **__: (runner,)
    options: Any = SimpleNamespace(timing=None)
    quarantine = Quarantine(tmp_path / "quarantine", "device", frozenset())
    work = Work(farm, plan, options, Progress(), quarantine)
    assert list(work.timed(TASKS)) == []
    names = [result.choice_hash for result in seen if result is not None]
    assert names == ["a16", "a32", "a64", "b16", "b32", "c"]
    assert seen.count(None) == 3


def test_stored_kernels_are_found_by_key_and_by_name(tmp_path: Path) -> None:
    store = BuiltKernels(tmp_path)
    result = BuildResult("a16", Status.OK, compile_s=1.0, files={"x": b"code"})
    store.keep(result, "a")
    assert store.find("a16") is None
    assert store.find("a32", "a") == replace(result, choice_hash="a32")
    # As a bundle holds them that was packed by name alone.
    store.keep(replace(result, choice_hash="b16"))
    assert store.find("b16", "b") == replace(result, choice_hash="b16")
