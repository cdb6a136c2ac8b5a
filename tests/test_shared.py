from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shared import shared


def worker(folder: Path) -> Any:
    """What gives a worker its own folder."""
    folder.mkdir(exist_ok=True)
    return SimpleNamespace(getbasetemp=lambda: folder)


def test_what_all_workers_ask_for_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    made: list[Path] = []

    def make(folder: Path) -> Path:
        made.append(folder)
        return folder

    workers = [worker(tmp_path / f"gw{number}") for number in range(8)]
    with ThreadPoolExecutor(len(workers)) as pool:
        got = set(pool.map(lambda one: shared(one, "thing", make), workers))
    assert got == set(made)
    assert [folder.parent for folder in made] == [tmp_path]


def test_one_process_keeps_it_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    folder = shared(worker(tmp_path), "thing", lambda folder: folder)
    assert folder.parent == tmp_path


def test_what_failed_is_made_anew(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        shared(worker(tmp_path / "gw0"), "thing", lambda _: 1 // 0)
    assert shared(worker(tmp_path / "gw0"), "thing", lambda _: 1) == 1
