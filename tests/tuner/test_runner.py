import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import candidate, library, offered, task, task_of

from flytune.caches.columns import Status
from flytune.tuner import cpu_runner as cpu_runner_module
from flytune.tuner.accuracy import TOLERANCES
from flytune.tuner.candidate import CPP, BuildResult, RunResult, TensorSpec, TuneTask
from flytune.tuner.cpu_runner import CpuRunner
from flytune.tuner.runner import place_files
from flytune.tuner.timing import Race, TimingPlan

QUICK = TimingPlan(warm_up=1, rounds=9, max_rounds=9, min_sample_us=1.0)
Built = Mapping[str, BuildResult]


def checked(cpu_runner: CpuRunner, made: TuneTask, builds: Built) -> list[RunResult]:
    cpu_runner.begin(made)
    return [cpu_runner.check(builds[c.choice_hash]) for c in made.offered.candidates]


def built(made: TuneTask) -> Built:
    names = [c.choice_hash for c in made.offered.candidates]
    return {name: BuildResult(name, Status.OK) for name in names}


def test_every_real_candidate_is_right_and_timed(
    cpu_runner: CpuRunner, real_tasks: tuple[TuneTask, ...], real_builds: Built
) -> None:
    ops = set()
    for made in real_tasks:
        results = checked(cpu_runner, made, real_builds)
        assert {(r.status, r.reason) for r in results} == {(Status.OK, "")}, made
        tolerance = TOLERANCES[made.offered.output.dtype]
        assert all(0 < (r.rel_error or 0) <= tolerance for r in results)
        names = [result.choice_hash for result in results]
        timed = cpu_runner.measure(names[::-1], QUICK)
        assert [result.choice_hash for result in timed] == names[::-1]
        for result in timed:
            # Who is beaten leaves after the rough rounds, or at the last look.
            ends = {QUICK.rounds} | ({QUICK.rough_rounds} if result.beaten else set())
            assert result.status is Status.OK
            assert len(result.samples_us) in ends
            assert all(sample > 0 for sample in result.samples_us)
            assert result.method.startswith("interleaved rounds, ")
        ops.add((made.offered.op, len(results)))
    assert ops == {
        ("linear_unary", 2),
        ("linear_binary", 2),
        ("packed_linear", 2),
        ("bmm", 2),
        ("addmm", 1),
    }


def test_method_says_what_was_warm(cpu_runner: CpuRunner) -> None:
    def method(made: TuneTask) -> str:
        checked(cpu_runner, made, built(made))
        said = cpu_runner.measure(["library"], QUICK)[0].method
        # What other processes did meanwhile comes last.
        return said.partition("; others")[0]

    assert method(task([library()])) == "interleaved rounds, 9 weight copies in turn"
    large = task([library()], n=512, k=512)
    assert method(large) == "interleaved rounds, weight read from memory"
    spec = TensorSpec((2, 8, 8), (64, 8, 1), "bfloat16")
    bmm = replace(offered([library()]), op="bmm", inputs=(spec, spec), output=spec)
    assert method(task_of(bmm)).endswith("operands warm, packing of B included")


def test_copies_of_all_candidates_fit_the_memory_they_may_take(
    cpu_runner: CpuRunner,
) -> None:
    # A weight of 16 KiB, a cache of 64 KiB and 1 MiB for the copies of 32 candidates.
    made = task([library(str(number)) for number in range(32)])
    checked(cpu_runner, made, built(made))
    assert "2 weight copies" in cpu_runner.measure(["0"], QUICK)[0].method


def test_a_candidate_that_was_not_built_is_reported(
    cpu_runner: CpuRunner, real_tasks: tuple[TuneTask, ...], real_builds: Built
) -> None:
    made = next(t for t in real_tasks if t.offered.op == "linear_unary")
    one = next(c for c in made.offered.candidates if c.backend == CPP)
    for name in real_builds[one.choice_hash].files:
        shutil.rmtree(cache_directory() / Path(name).parent, ignore_errors=True)
    forget_loaded_kernels()
    results = checked(cpu_runner, made, real_builds | built(made))
    by_name = {result.choice_hash: result for result in results}
    assert by_name.pop(one.choice_hash) == RunResult(
        one.choice_hash, Status.FAULT, "reached the runner without a build"
    )
    assert [result.status for result in by_name.values()] == [Status.OK]


def cache_directory() -> Path:
    from torch._inductor.runtime.runtime_utils import cache_dir

    return Path(cache_dir())


def forget_loaded_kernels() -> None:
    from torch._inductor.codecache import CppCodeCache

    CppCodeCache.cache_clear()


@pytest.mark.parametrize(
    ("in_run", "said"),
    [
        ("nan", "relative error nan exceeds 0.01"),
        ("tail", "relative error nan exceeds 0.01"),
        ("tile", "relative error 0."),
        ("second", "a second launch differs by 0."),
        ("once", "a second launch differs by nan"),
    ],
)
def test_a_wrong_result_is_out_and_the_others_stay(
    cpu_runner: CpuRunner, in_run: str, said: str
) -> None:
    wrong = candidate("wrong", in_run=in_run)
    made = task([library(), wrong, candidate("right")], k=2560)
    a, b, c = checked(cpu_runner, made, built(made))
    assert (a.status, c.status) == (Status.OK, Status.OK)
    assert b.status is Status.WRONG_RESULT
    assert b.reason.startswith(said)


@pytest.mark.parametrize(
    ("in_run", "status", "said"),
    [
        ("raise", Status.FAULT, "ValueError: a candidate's own error"),
        ("over resources", Status.OVER_RESOURCES, "OutOfResources: shared memory"),
        ("python memory", Status.OUT_OF_MEMORY, "MemoryError"),
        ("torch memory", Status.OUT_OF_MEMORY, "RuntimeError: "),
    ],
)
def test_a_candidate_that_raises_is_a_row(
    cpu_runner: CpuRunner, in_run: str, status: Status, said: str
) -> None:
    made = task([candidate("bad", in_run=in_run), library()])
    bad, good = checked(cpu_runner, made, built(made))
    assert (bad.status, good.status) == (status, Status.OK)
    assert bad.reason.startswith(said)


def test_a_failed_build_keeps_its_status(cpu_runner: CpuRunner) -> None:
    failed = BuildResult("x", Status.COMPILE_ERROR, "no such register")
    made = task([candidate("x")])
    assert checked(cpu_runner, made, {"x": failed}) == [
        RunResult("x", Status.COMPILE_ERROR, "no such register")
    ]


def test_a_task_without_operands_gives_rows(cpu_runner: CpuRunner) -> None:
    unknown = task_of(replace(offered([library(), candidate("x")]), op="int_mm"))
    for result in checked(cpu_runner, unknown, built(unknown)):
        assert result.status is Status.UNSUPPORTED
        assert result.reason == "no runner for op: int_mm"
    huge = task([library()], m=1, n=2**28, k=2**28)
    (result,) = checked(cpu_runner, huge, built(huge))
    assert result.status is Status.OUT_OF_MEMORY
    good = task([library()])
    assert checked(cpu_runner, good, built(good))[0].status is Status.OK


def test_an_unknown_backend_leaves_the_others(cpu_runner: CpuRunner) -> None:
    made = task([candidate("x", "triton"), library()])
    unknown, good = checked(cpu_runner, made, built(made))
    assert unknown.status is Status.UNSUPPORTED
    assert unknown.reason == "no runner for backend: triton"
    assert good.status is Status.OK


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_kernel_without_a_time_is_unstable(
    cpu_runner: CpuRunner, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    made = task([library(), candidate("x")])
    checked(cpu_runner, made, built(made))
    samples = {"library": (10.0,) * 9, "x": (10.0,) * 8 + (bad,)}
    race = Race(samples, frozenset())
    monkeypatch.setattr(cpu_runner_module, "time_interleaved", lambda *_: race)
    good, unstable = cpu_runner.measure(["library", "x"], QUICK)
    assert good.status is Status.OK
    assert unstable.status is Status.UNSTABLE
    assert unstable.reason == f"a sample is no time: {bad:g} us"
    assert unstable.samples_us == ()


def test_files_are_placed_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    place_files({"ab/c.so": b"one"})
    place_files({"ab/c.so": b"two", "ab/d.so": b"three"})
    assert (tmp_path / "ab" / "c.so").read_bytes() == b"one"
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["c.so", "d.so"]
