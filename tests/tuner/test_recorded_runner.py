"""Decisions from times that others recorded, through flytune's own selection."""

from collections.abc import Iterable

import pytest
from builds import DATA
from fakes import offered

from flytune.caches.recorded import RecordedTime, read_recorded
from flytune.caches.records import Status
from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import ATEN, TRITON, BuildResult, Candidate, TuneTask
from flytune.tuner.decision import Decision, decide
from flytune.tuner.recorded_runner import METHOD, RecordedRunner

FLYDSL = "flydsl"
TIMES = read_recorded(DATA / "recorded" / "flydsl.csv").times
BACKENDS = (ATEN, TRITON, FLYDSL)


def candidates() -> list[Candidate]:
    """Two of each backend but the library, as lists have them."""
    names = [f"{backend} {number}" for backend in BACKENDS[1:] for number in range(2)]
    return [
        Candidate(ATEN, "mm", "{}", "library", b""),
        *(Candidate(name.split()[0], "t", f'"{name}"', name, b"") for name in names),
    ]


def decision(time: RecordedTime, times: Iterable[RecordedTime] = TIMES) -> Decision:
    """Decide the list of one recorded GEMM."""
    scaling = time.dtype if time.dtype.startswith("mx") else None
    shape = GemmShape(
        op=time.op,  # type: ignore[arg-type]
        m=time.m,
        n=time.n,
        k=time.k,
        groups=time.groups,
        a_dtype="float8_e4m3fn" if scaling else time.dtype,
        scaling=scaling,
    )
    task = TuneTask(shape, offered(candidates()), ("module",))
    builds = [BuildResult(c.choice_hash, Status.OK) for c in task.offered.candidates]
    return decide(task, builds, RecordedRunner(times).run(task, builds))


@pytest.mark.parametrize(
    "time",
    [t for t in TIMES if t.backend == FLYDSL],
    ids=lambda t: f"{t.op}-{t.groups}x{t.m}x{t.n}x{t.k}",
)
def test_each_published_speedup_comes_out_as_it_went_in(time: RecordedTime) -> None:
    same = [
        t
        for t in TIMES
        if (t.op, t.m, t.n, t.k, t.groups)
        == (time.op, time.m, time.n, time.k, time.groups)
        and t.backend in BACKENDS
    ]
    made = decision(time)
    medians = {r.backend: r.median_us for r in made.records if r.median_us is not None}
    assert medians == pytest.approx({t.backend: t.us for t in same})
    fastest = min(same, key=lambda t: t.us)
    # A difference inside the tie band goes to the library.
    tied = [t.backend for t in same if t.us <= 1.02 * fastest.us]
    assert made.winner.backend == (ATEN if ATEN in tied else fastest.backend)
    for record in made.records:
        if record.median_us is None:
            assert (record.status, record.reason) == (
                Status.UNSUPPORTED,
                "no recorded time",
            )
            assert record.source is None
        else:
            assert record.method == METHOD
            assert (record.source or "").startswith("flydsl.csv: pytorch/pytorch#")


def test_one_candidate_of_a_backend_stands_for_it() -> None:
    time = next(t for t in TIMES if (t.op, t.backend) == ("grouped_mm", FLYDSL))
    timed = [r.choice_hash for r in decision(time).records if r.median_us]
    assert timed == ["library", "triton 0", "flydsl 0"]


def test_a_shape_without_a_time_is_decided_untimed() -> None:
    time = RecordedTime("mm", 3, 5, 7, 0, "bfloat16", ATEN, 1.0, "x")
    made = decision(time)
    assert (made.was_timed, made.winner.choice_hash) == (False, "library")


def test_a_candidate_that_is_named_gets_its_own_time() -> None:
    sizes = (512, 512, 512, 0)
    times = [
        RecordedTime("mm", *sizes, "bfloat16", backend, us, "r", choice_hash=name)
        for name, backend, us in (
            ("library", ATEN, 9.0),
            ("triton 1", TRITON, 5.0),
            ("triton 0", TRITON, 7.0),
            ("gone", TRITON, 1.0),
        )
    ]
    made = decision(times[0], times)
    assert made.winner.choice_hash == "triton 1"
    assert [r.median_us for r in made.records][:3] == [9.0, 7.0, 5.0]


def test_a_time_of_another_layout_is_none() -> None:
    time = RecordedTime("mm", 8, 8, 8, 0, "bfloat16", ATEN, 1.0, "x", layout="NN")
    assert not decision(time, [time]).was_timed


def test_what_was_not_built_has_no_time() -> None:
    runner = RecordedRunner(TIMES)
    failed = BuildResult("flydsl 0", Status.COMPILE_ERROR, "no")
    assert runner.check(failed).status is Status.COMPILE_ERROR
