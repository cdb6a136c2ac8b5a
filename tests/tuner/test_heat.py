"""Which list is the hottest: by its roofline, and by what was timed."""

from dataclasses import replace

import pytest
from fakes import library, task

from flytune.caches.device_profile import find_profile
from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import TuneTask
from flytune.tuner.decision import untimed_record
from flytune.tuner.heat import Heat, least_by_ceilings, least_by_profile


def one(m: int = 16, n: int = 4096, k: int = 4096, count: int = 1) -> TuneTask:
    made = task([library()], m=m, n=n, k=k)
    return replace(made, shape=replace(made.shape, count=count))


def never(shape: GemmShape) -> float:
    raise AssertionError(shape)


def test_the_roofline_is_of_what_was_measured() -> None:
    ceilings = {"copy_gb_s": 2000.0, "gemm_tflops": {"bfloat16": 500.0}}
    least = least_by_ceilings(ceilings, never)
    moved = 2 * (16 * 4096 + 4096 * 4096 + 16 * 4096)
    assert least(one().shape) == pytest.approx(moved / 2e6)
    large = one(m=8192).shape
    assert least(large) == pytest.approx(2 * 8192 * 4096 * 4096 / 5e8)
    other = replace(large, a_dtype="float16")
    assert least_by_ceilings(ceilings, lambda _: 7.0)(other) == 7.0
    assert least_by_ceilings({}, lambda _: 7.0)(large) == 7.0


def test_an_h200_is_about_as_fast_as_it_was_measured() -> None:
    least = least_by_profile(find_profile("h200"), threads=1)
    # Of smart/h200.parquet: what the library takes there.
    for m, n, k, us in ((16, 14336, 4096, 34.9), (1024, 8192, 3584, 84.3)):
        assert 0.5 * us < least(one(m, n, k).shape) < us


def test_calls_and_time_and_what_could_be_won_make_it_hot() -> None:
    heat = Heat(least_by_profile(None, threads=2))
    small, large, often = one(), one(n=16384), one(count=80)
    assert heat.ordered([small, large, often]) == [often, large, small]
    assert heat.pass_us(often) == pytest.approx(80 * heat.pass_us(small))
    assert heat.pass_us(often, 3.0) == 240.0


def test_what_is_timed_counts_as_it_was() -> None:
    near, far = one(m=16), one(m=32)
    blank = untimed_record(near, near.offered.candidates[0])
    least = least_by_profile(None, threads=2)
    fast = replace(blank, median_us=1.1 * least(near.shape))
    heat = Heat(least, [fast])
    assert heat.us(near.shape) == pytest.approx(1.1 * least(near.shape))
    # One that nobody has timed is as far from its roofline as those that were.
    assert heat.us(far.shape) == pytest.approx(1.1 * least(far.shape))
    slow = replace(blank, median_us=9.0 * least(near.shape))
    other = untimed_record(far, far.offered.candidates[0])
    good = replace(other, median_us=1.1 * least(far.shape))
    assert Heat(least, [slow, good]).ordered([far, near]) == [near, far]
    # What this build itself has timed is nearer to the truth than both.
    assert heat.of(near, least(near.shape)) == 0


def test_a_roofline_that_was_beaten_is_lower() -> None:
    near, far = one(m=16), one(m=512)
    least = least_by_profile(None, threads=2)
    records = [
        replace(
            untimed_record(task, task.offered.candidates[0]),
            median_us=factor * least(task.shape),
        )
        for task, factor in ((near, 0.5), (far, 0.25))
    ]
    heat = Heat(least, records)
    assert heat.of(near) == pytest.approx(0.25 * least(near.shape))
    assert heat.of(far) == 0
    assert heat.ordered([far, near]) == [near, far]
