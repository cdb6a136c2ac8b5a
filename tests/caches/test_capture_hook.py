"""The mode that counts, in this process: where it fails, and its bound."""

from pathlib import Path

import pytest
import torch

from flytune.caches.capture import read_counts
from flytune.caches.hook import flytune_capture, flytune_counts
from flytune.caches.hook.flytune_counts import Counts


def test_counting_that_fails_is_said_once_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flytune_capture, "_failed", False)
    counts = Counts(str(tmp_path / "none"))
    a, b = torch.ones(3, 8), torch.ones(8, 5)
    with flytune_capture.mode_of(torch, counts)():
        assert torch.equal(a @ b, a @ b)
    said = capsys.readouterr().err
    assert said.startswith("flytune: capture: not all GEMMs are counted: FileNotFound")
    assert said.count("\n") == 1


def test_distinct_gemms_are_counted_apart_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flytune_counts, "MOST", 3)
    counts = Counts(str(tmp_path))
    with flytune_capture.mode_of(torch, counts)():
        for rows in (1, 2, 3, 4, 2, 3):
            torch.mm(torch.ones(rows, 8), torch.ones(8, 5))
    captured = read_counts(tmp_path)
    assert {(shape.m, shape.count) for shape in captured.shapes} == {(1, 1), (2, 2)}
    assert captured.set_aside == {"too many distinct GEMMs in one process": 3}
