from collections.abc import Mapping
from pathlib import Path

import pytest
from fakes import candidate, library
from flydsl_candidates import PROFILE

from flytune.caches.columns import Status
from flytune.tuner import builder
from flytune.tuner.builder import build, forget_kernels
from flytune.tuner.candidate import ATEN, TRITON, BuildResult, TuneTask, failure


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_every_real_candidate_is_built(
    real_tasks: tuple[TuneTask, ...], real_builds: Mapping[str, BuildResult]
) -> None:
    for task in real_tasks:
        for one in task.offered.candidates:
            result = real_builds[one.choice_hash]
            assert (result.status, result.reason) == (Status.OK, "")
            kinds = {Path(name).suffix for name, data in result.files.items() if data}
            assert kinds == (set() if one.backend == ATEN else {".so", ".cpp"})
            assert (result.compile_s > 0) == (one.backend != ATEN)


@pytest.mark.parametrize(
    ("misbehaviour", "status", "reason"),
    [
        ("raise", Status.COMPILE_ERROR, "ValueError: a candidate's own error"),
        (
            "over resources",
            Status.OVER_RESOURCES,
            "OutOfResources: shared memory: 300000 of 232448 bytes",
        ),
        ("python memory", Status.OUT_OF_MEMORY, "MemoryError: no message"),
    ],
)
def test_a_failed_compilation_is_a_result(
    misbehaviour: str, status: Status, reason: str
) -> None:
    result = build(candidate("x", in_build=misbehaviour))
    assert result == BuildResult("x", status, reason)


def test_allocators_of_torch_run_out_of_memory_too() -> None:
    result = build(candidate("x", in_build="torch memory"))
    assert result.status is Status.OUT_OF_MEMORY
    assert "can't allocate memory" in result.reason


def test_a_request_that_is_none_is_a_result() -> None:
    broken = candidate("x")
    object.__setattr__(broken, "request", b"garbage")
    assert build(broken).status is Status.COMPILE_ERROR


def test_a_library_kernel_is_not_built() -> None:
    assert build(library(in_build="raise")) == BuildResult("library", Status.OK)


def test_files_that_were_there_before_are_not_the_candidates(directory: Path) -> None:
    (directory / "old.so").touch()
    assert build(candidate("x")).files == {}


def test_reason_is_the_line_that_says_error_and_short() -> None:
    noise = "In file included from x.h\n\n  x.cpp:3: error: no such type\n  more"
    assert failure(RuntimeError(noise), Status.FAULT) == (
        Status.FAULT,
        "RuntimeError: x.cpp:3: error: no such type",
    )
    assert len(failure(RuntimeError("x" * 10_000), Status.FAULT)[1]) < 400


def test_what_a_device_says_of_too_large_a_kernel_is_no_fault() -> None:
    """As Inductor passes it on, seen on an H200."""
    words = (
        "No valid triton configs. OutOfMemoryError: out of resource: triton_mm "
        "Required: 262144 Hardware limit:232448 Reducing block sizes or `num_stages` "
        "may help."
    )
    status, reason = failure(RuntimeError(words), Status.FAULT)
    assert status is Status.OVER_RESOURCES
    assert "Required: 262144" in reason


def test_a_process_that_lives_on_keeps_flydsls_entries_alone(directory: Path) -> None:
    kept = "flydsl_compile_cache/kernel/entry.pkl"
    for name in ("triton/0/KEY/a.cubin", "ab/module.py", kept):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"a file")
    forget_kernels()
    left = [path for path in directory.rglob("*") if path.is_file()]
    assert left == [directory / kept]


@pytest.mark.parametrize("taken", [163840, 163841])
def test_a_triton_kernel_beyond_a_blocks_shared_memory_is_over_resources(
    directory: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Triton compiles it, and says so only when it loads it."""
    folder = directory / "triton" / "0" / "KEY"

    def compile_triton(*_: object) -> None:
        folder.mkdir(parents=True)
        (folder / "__grp__triton_mm.json").write_text('{"child_paths": {}}')
        (folder / "triton_mm.hsaco").write_bytes(b"code")
        (folder / "triton_mm.json").write_text(f'{{"shared": {taken}}}')

    monkeypatch.setattr(builder, "_compile_triton", compile_triton)
    result = build(candidate("x", TRITON), PROFILE)
    if taken <= PROFILE.max_shared_bytes:
        assert (result.status, len(result.files)) == (Status.OK, 3)
    else:
        reason = "OutOfResources: shared memory: 163841 of 163840 bytes"
        assert result == BuildResult("x", Status.OVER_RESOURCES, reason)
