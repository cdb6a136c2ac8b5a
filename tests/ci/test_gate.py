"""What the gate's benchmark counts, and a kernel that really takes longer."""

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flytune.caches.columns import Status
from flytune.tuner.candidate import BuildResult, Candidate

BENCH = Path(__file__).parents[2] / "ci" / "bench"
LAUNCH_S = 0.002


class Request:
    """A launch of so long, whatever else the machine does."""

    has_out_variant = True

    def make_run_fn(self, *tensors: Any, out: list[int]) -> Callable[[], None]:
        def launch() -> None:
            end = time.perf_counter() + LAUNCH_S
            while time.perf_counter() < end:
                pass
            out.append(len(tensors))

        return launch


class Clock:
    """Goes on by a tick at each look, and by what launches take."""

    tick_ns = 1_000
    now_ns = 0
    looks = 0

    def __call__(self) -> int:
        self.looks += 1
        self.now_ns += self.tick_ns
        return self.now_ns


CLOCK = Clock()


class Counted:
    """A launch of so long by that clock."""

    has_out_variant = True

    def make_run_fn(self, *tensors: Any, out: list[int]) -> Callable[[], None]:
        def launch() -> None:
            CLOCK.now_ns += round(1e9 * LAUNCH_S)
            out.append(len(tensors))

        return launch


@pytest.fixture
def gate(bench: Callable[[str], ModuleType]) -> ModuleType:
    return bench("gate")


@pytest.fixture
def slowed(bench: Callable[[str], ModuleType]) -> ModuleType:
    return bench("slowed")


def made(slowed: ModuleType, share: float) -> tuple[Candidate, BuildResult]:
    inside = Candidate("cpp", "gemm", '{"attr": "none"}', "h", pickle.dumps(Request()))
    built = BuildResult("h", Status.OK, files={"a/k.so": b"kernel"})
    found: tuple[Candidate, BuildResult] = slowed.slowed(inside, built, share)
    return found


def least_s(one: Candidate) -> float:
    """The shortest of some launches: what others disturb is longer."""
    out: list[int] = []
    request = pickle.loads(one.request)
    assert request.has_out_variant
    launch = request.make_run_fn(1, 2, out=out)
    # It has been measured.
    out.clear()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        launch()
        times.append(time.perf_counter() - start)
    assert out == [2] * 20
    return min(times)


def test_a_slowed_kernel_takes_as_much_longer_as_it_is_told_to(
    slowed: ModuleType,
) -> None:
    # At the least: a busy machine only adds.
    assert least_s(made(slowed, 0.5)[0]) >= 1.45 * LAUNCH_S


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
def test_it_takes_no_longer_than_that_and_a_twin_nothing(
    slowed: ModuleType, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(slowed, "time", SimpleNamespace(perf_counter_ns=CLOCK))
    out: list[int] = []
    one = slowed.Slowed(pickle.dumps(Counted()), share)
    launch = one.make_run_fn(1, 2, out=out)
    out.clear()
    start_ns, looks = CLOCK.now_ns, CLOCK.looks
    launch()
    assert out == [2]
    wanted_ns = 1e9 * LAUNCH_S * (1 + share)
    assert abs(CLOCK.now_ns - start_ns - wanted_ns) <= 3 * CLOCK.tick_ns
    # A twin is the launch itself, at which nobody looks.
    assert bool(share) == (CLOCK.looks > looks)


def test_it_is_a_kernel_of_its_own_that_fuses_the_same(slowed: ModuleType) -> None:
    one, built = made(slowed, 0.05)
    assert one.choice_hash == built.choice_hash != "h"
    assert json.loads(one.config) == {"attr": "none", "slower": "0.05"}
    assert built.files["a/k.so"] == b"kernel"
    assert len(built.files) == 2


def row(made: str, outcome: str, *, found: bool = False) -> Mapping[str, Any]:
    return {
        **{"made": made, "outcome": outcome, "found": found},
        **{"retimed": 1, "processes": 4},
    }


def test_alarms_and_finds_are_counted_apart_from_what_is_undecided(
    gate: ModuleType,
) -> None:
    rows = [
        *[row("nothing", "fine")] * 199,
        *[row("twin", "regression"), row("twin", "undecided")],
        *[row("slowdown", "regression", found=True)] * 95,
        # Of another list than the one that was slowed.
        *[row("slowdown", "regression")] * 2,
        *[row("slowdown", "undecided"), row("slowdown", "fine")],
    ]
    figures = gate.figures_of(rows)
    assert figures == {
        "comparisons": 201,
        "false_alarms": 1,
        "comparisons_undecided": 1,
        "twins": 2,
        "slowdowns_made": 99,
        "slowdowns_found": 95,
        "slowdowns_undecided": 1,
        "slowdown": 0.05,
        "retimed": len(rows),
        "most_processes": 4,
    }
    assert gate.good(figures)
    assert not gate.good({**figures, "false_alarms": 2})
    assert not gate.good({**figures, "slowdowns_found": 94})


@pytest.mark.slow
def test_a_whole_run_tunes_races_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "gate.py"), "--quick", "--device", "cpu"]
    for option in ("state", "work", "results"):
        command += [f"--{option}", str(tmp_path / option)]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    (written,) = (tmp_path / "results").glob("gate.*.json")
    figures = json.loads(written.read_text())["figures"]
    assert figures["comparisons"] == 2, first.stderr
    assert figures["slowdowns_made"] == 1
    # It raced, whatever a busy machine let it say.
    rows = json.loads(written.read_text())["rows"]
    assert [row["retimed"] for row in rows if row["made"] == "twin"] == [1]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == first.returncode
    # All that was measured is kept.
    assert not [x for x in again.stdout.splitlines() if x.startswith("tune ")]
