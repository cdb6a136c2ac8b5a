"""A build's search with `--search smart`, by a device that tells known costs."""

import json
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from long_lists import Device, long_list

from flytune.caches.device_profile import DeviceProfile
from flytune.tuner import search as stage
from flytune.tuner.candidate import TuneTask
from flytune.tuner.cli import main
from flytune.tuner.decision import timings
from flytune.tuner.journal import Journal
from flytune.tuner.overlap import Timed
from flytune.tuner.progress import Progress
from flytune.tuner.runner import Device as TimedDevice

PROFILE = resources.files("flytune.caches") / "profiles" / "h200.json"


class Work:
    """Stands for the workers."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def timed(self, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        return self._device.time(tasks)

    def ceilings(self, _: object) -> dict[str, Any]:
        return {}


def searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tasks: Sequence[TuneTask]
) -> tuple[stage.Searched, Device]:
    device = Device()
    timed_on = TimedDevice("NVIDIA H200", cache_bytes=1, rotation_bytes=1)
    monkeypatch.setattr(stage, "Work", lambda *_: Work(device))
    monkeypatch.setattr(stage, "device_of", lambda _: timed_on)
    profile = DeviceProfile.from_json(json.loads(PROFILE.read_text()))
    own = folder / "own"
    own.mkdir(exist_ok=True)
    plan: Any = SimpleNamespace(profile=profile, work=own)
    options: Any = SimpleNamespace(work=folder, exclude=frozenset(), search="smart")
    with Journal(own / "journal.jsonl") as journal:
        given = (plan, tasks, options, journal, (), lambda: None, Progress())
        return stage.search(*given), device


def test_a_build_times_a_tenth_and_answers_for_all(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = long_list(m=128, n=2048, k=2048)
    found, device = searched(tmp_path, monkeypatch, [task])
    number = len(task.offered.candidates)
    assert 0 < len(device.compiled()) <= number / 10
    assert "tune: wave 1: " in capsys.readouterr().err
    (decision,) = found.decisions
    assert len(decision.records) == number
    # Inductor finds a time of every candidate, and the winner's is the least.
    told = timings(found.decisions)
    assert len(told) == number
    assert min(told, key=lambda t: t.ms).choice_hash == decision.winner.choice_hash


def test_the_same_build_again_asks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = long_list(m=128, n=2048, k=2048)
    first, _ = searched(tmp_path, monkeypatch, [task])
    again, device = searched(tmp_path, monkeypatch, [task])
    assert not device.asked
    assert again.decisions == first.decisions


def test_another_build_of_the_work_directory_has_learned_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    own = stage.earlier_builds

    def seen(*args: Any) -> Iterator[Any]:
        found = list(own(*args))
        taken.append(len(found))
        return iter(found)

    monkeypatch.setattr(stage, "earlier_builds", seen)
    searched(tmp_path, monkeypatch, [long_list(m=128, n=2048, k=2048)])
    (tmp_path / "own").rename(tmp_path / "other")
    searched(tmp_path, monkeypatch, [long_list(m=128, n=2048, k=1024)])
    assert taken[0] == 0
    assert taken[1] > 0


def test_a_build_that_times_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["build", "--model", "Qwen3-4B", "--target", "h200", "--compile-only"]
    work = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "bundle")]
    with pytest.raises(SystemExit) as caught:
        main([*command, *work, "--search", "smart"])
    assert caught.value.code == 1
    said = capsys.readouterr().err
    assert "error: --search smart goes by times, and nothing is timed" in said
    assert "hint: --search default or exhaustive" in said
    assert not (tmp_path / "bundle").exists()
