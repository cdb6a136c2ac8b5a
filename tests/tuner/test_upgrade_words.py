"""What is said of an older bundle before work starts."""

from dataclasses import replace
from typing import Any

import pytest
from small_bundles import bare_manifest

from flytune.caches.host import Part
from flytune.caches.lists import TunedList, lists_of
from flytune.caches.manifest import FileEntry, Manifest
from flytune.caches.records import Status, TuningRecord
from flytune.caches.target import Target
from flytune.shapes.gemm import GemmShape
from flytune.tuner.survival import Changes, changes
from flytune.tuner.upgrade_words import plan_lines, survival_lines

HARDWARE: dict[str, Part] = {"kind": "cuda", "vendor": "amd", "arch": "gfx950"}
SOFTWARE: dict[str, Part] = {
    **{"triton": "3.8.0", "triton_key": "b" * 1700, "flydsl": "0.3.4.1"},
    "driver": "6.1",
}
TIMES = {"aten": (11.0,), "triton": (10.0, 12.0, 20.0, 21.0), "flydsl": (13.0, 14.0)}


def records(batch_s: float | None = 36.0) -> list[TuningRecord]:
    """A list of seven candidates, each of which took a minute to compile."""
    found = []
    for backend, times in TIMES.items():
        for us in times:
            samples = (us, us * 1.001) * 8
            found.append(
                TuningRecord.of_shape(
                    GemmShape("mm", 16, 64, 128),
                    backend=backend,
                    template="mm",
                    config=str(us),
                    choice_hash=str(us),
                    status=Status.OK,
                    median_us=us,
                    samples_us=samples,
                    compile_s=None if backend == "aten" else 60.0,
                    batch_s=batch_s,
                    winner=us == 10.0,
                )
            )
    return found


def lists(**more: Any) -> tuple[TunedList, ...]:
    return lists_of(records(**more))


def moved(**software: Part) -> Changes:
    here = Target(HARDWARE, {**SOFTWARE, **software})
    return changes(Target(HARDWARE, SOFTWARE), here)


def bundle() -> Manifest:
    files = {f"inductor/fxgraph/{n}": FileEntry("0" * 64, 1) for n in range(3)}
    return bare_manifest(
        files=files,
    )


@pytest.mark.parametrize(
    ("software", "said"),
    [
        (
            {},
            [
                "graphs                3 files      kept",
                "flydsl kernels        2 candidates kept",
                "triton kernels        4 candidates kept",
                "library timings       1 time       kept",
                "template timings      6 times      kept",
            ],
        ),
        (
            {"triton": "3.9.0"},
            [
                "software.triton: built for `3.8.0`, here `3.9.0`",
                "graphs                3 files      made again: software.triton",
                "flydsl kernels        2 candidates kept",
                "triton kernels        4 candidates compiled again: software.triton",
                "library timings       1 time       kept",
                "template timings      6 times      kept where the bytes are the same: "
                "software.triton",
            ],
        ),
        (
            {"triton_key": "a" * 1700},
            [
                "software.triton_key: that of another build",
                "graphs                3 files      made again: software.triton_key",
                "flydsl kernels        2 candidates kept",
                "triton kernels        4 candidates compiled again: "
                "software.triton_key",
                "library timings       1 time       kept",
                "template timings      6 times      kept where the bytes are the same: "
                "software.triton_key",
            ],
        ),
        (
            {"driver": "6.2"},
            [
                "software.driver: built for `6.1`, here `6.2`",
                "graphs                3 files      kept",
                "flydsl kernels        2 candidates kept",
                "triton kernels        4 candidates kept",
                "library timings       1 time       taken again: software.driver",
                "template timings      6 times      taken again: software.driver",
            ],
        ),
    ],
)
def test_what_survives(software: dict[str, Part], said: list[str]) -> None:
    assert list(survival_lines(bundle(), lists(), moved(**software))) == said


def test_what_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    # Triton's winner and runner-up, the library's and FlyDSL's best; two to compile.
    first, then = plan_lines(lists(), moved(triton="3.9.0"))
    assert first == (
        "first 4 candidates of 1 list, the winners, the runners-up and each backend's "
        "best: 1 min 00 s of compiling on 2 cores and 20.6 s of the device"
    )
    assert then == (
        "then 3 more, only where a front has moved; all at once would take 2 min 00 s "
        "of compiling on 2 cores and 36.0 s of the device"
    )


def test_hours_are_said_as_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    _, then = plan_lines(lists(batch_s=9000.0), moved(triton="3.9.0"))
    assert then.endswith(
        "4 min 00 s of compiling on 1 core and 2 h 30 min of the device"
    )


def test_nothing_comes_later_where_all_comes_first() -> None:
    some = lists_of(r for r in records() if r.config in ("11.0", "10.0", "13.0"))
    assert len(list(plan_lines(some, moved(triton="3.9.0")))) == 1


def test_what_the_records_do_not_tell() -> None:
    first, _ = plan_lines(lists(batch_s=None), moved(triton="3.9.0"))
    assert first.endswith(", and on the device what the records do not tell")


def test_lists_without_a_choice_are_no_work() -> None:
    untimed = [replace(r, median_us=None, samples_us=()) for r in records()]
    for some in (records()[:1], untimed, []):
        assert list(plan_lines(lists_of(some), moved(triton="3.9.0"))) == []
