"""FlyDSL's kernels, really compiled for a device that is not here."""

import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from flydsl_candidates import (
    ARCH,
    PROFILE,
    Rendered,
    builder,
    entry_of,
    plainly,
    with_rocm,
)

from flytune.caches.code_object import lds_bytes
from flytune.caches.columns import Status
from flytune.caches.flydsl_kernel import objects_of
from flytune.shapes.errors import FlytuneError
from flytune.tuner import flydsl_builder
from flytune.tuner.builder import build
from flytune.tuner.candidate import BuildResult, Candidate
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.flydsl_builder import checked, prepare
from flytune.tuner.rocm_tools import LINKER
from flytune.tuner.workers import Farm

ENTRY = re.compile(r"flydsl_compile_cache/\w+_[0-9a-f]{32}/[0-9a-f]{16}\.pkl")


@pytest.fixture(autouse=True)
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Inductor writes the modules of the candidates."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "lists"))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    with builder(tmp_path_factory.mktemp("process")) as made:
        yield made


def submit(process: ProcessPoolExecutor, candidate: Candidate) -> BuildResult:
    return process.submit(build, candidate, PROFILE).result()


def test_every_kind_of_kernel_is_compiled_for_the_device(
    flydsl_kernels: tuple[Rendered, ...], flydsl_builds: dict[str, BuildResult]
) -> None:
    for one in flydsl_kernels:
        result = flydsl_builds[one.kernel.name]
        assert (result.status, result.reason) == (Status.OK, "")
        assert result.compile_s > 0
        assert ENTRY.fullmatch(entry_of(result))
        (code,) = objects_of(result.files[entry_of(result)], ARCH)
        assert 0 < lds_bytes(code) <= PROFILE.max_shared_bytes


def test_kernels_of_one_key_are_one_entry(
    flydsl_kernels: tuple[Rendered, ...], flydsl_builds: dict[str, BuildResult]
) -> None:
    entries = [entry_of(flydsl_builds[one.kernel.name]) for one in flydsl_kernels]
    assert entries[0] == entries[1]
    first, second = (flydsl_builds[one.kernel.name] for one in flydsl_kernels[:2])
    assert first.files == second.files
    assert second.compile_s < first.compile_s / 4
    assert len(set(entries)) == len(entries) - 1


def test_what_is_compiled_already_is_returned_again(
    process: ProcessPoolExecutor,
    flydsl_kernels: tuple[Rendered, ...],
    flydsl_builds: dict[str, BuildResult],
) -> None:
    """And with the same bytes by any process, also after its entry is gone."""
    candidate = flydsl_kernels[0].candidate()
    first, second = (submit(process, candidate) for _ in range(2))
    assert second.compile_s < first.compile_s / 4
    third = process.submit(plainly, candidate).result()
    assert third.compile_s > second.compile_s
    for result in (first, second, third):
        assert result.files == flydsl_builds[candidate.choice_hash].files


@pytest.mark.slow
def test_two_processes_may_write_one_entry(
    flydsl_kernels: tuple[Rendered, ...], tmp_path: Path
) -> None:
    candidate = flydsl_kernels[0].candidate()
    shared = tmp_path / "shared"
    with builder(shared) as one, builder(shared) as other:
        asked = [p.submit(build, candidate, PROFILE) for p in (one, other)]
        first, second = (future.result() for future in asked)
    assert (first.status, first.files) == (Status.OK, second.files)
    (entry,) = shared.rglob("*.pkl")
    assert entry.read_bytes() == first.files[entry_of(first)]
    left = {path.suffix for path in entry.parent.iterdir()}
    assert left == {".pkl", ".lock"}


@pytest.mark.slow
def test_workers_compile_the_same_bytes(
    flydsl_kernels: tuple[Rendered, ...], flydsl_builds: dict[str, BuildResult]
) -> None:
    candidates = [one.candidate() for one in flydsl_kernels]
    with Farm(None, {}, Deadlines(), PROFILE) as farm:
        results = [result for result in farm.build_all(candidates) if result]
    assert {r.choice_hash: r.files for r in results} == {
        name: result.files for name, result in flydsl_builds.items()
    }


def test_more_lds_than_a_workgroup_may_have_is_over_resources(
    process: ProcessPoolExecutor, flydsl_kernels: tuple[Rendered, ...]
) -> None:
    small = replace(PROFILE, max_shared_bytes=4096)
    candidate = flydsl_kernels[0].candidate()
    result = process.submit(build, candidate, small).result()
    assert (result.status, result.files) == (Status.OVER_RESOURCES, {})
    assert re.fullmatch(
        r"OutOfResources: shared memory: \d+ of 4096 bytes", result.reason
    )


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"GEMM_N": "fx.Constexpr = 1023"}, Status.UNSUPPORTED, "unsupported FlyDSL"),
        ({"STAGES": "fx.Constexpr = 9"}, Status.UNSUPPORTED, "stages=9"),
        ({"TILE_M": "fx.Constexpr = ("}, Status.COMPILE_ERROR, "SyntaxError"),
        ({"TILE_M": "fx.Constexpr = None"}, Status.COMPILE_ERROR, "TypeError"),
    ],
)
def test_a_kernel_that_does_not_compile_is_a_row(
    process: ProcessPoolExecutor,
    flydsl_kernels: tuple[Rendered, ...],
    changes: dict[str, str],
    status: Status,
    said: str,
) -> None:
    result = submit(process, flydsl_kernels[0].candidate(**changes))
    assert (result.status, result.files) == (status, {})
    assert said in result.reason
    assert "\n" not in result.reason


@pytest.mark.parametrize("script", ["", "exit 1"])
def test_a_linker_that_fails_is_a_row(
    process: ProcessPoolExecutor,
    flydsl_kernels: tuple[Rendered, ...],
    tmp_path: Path,
    script: str,
) -> None:
    linker = tmp_path / LINKER
    linker.parent.mkdir(parents=True)
    if script:
        linker.write_text(f"#!/bin/sh\n{script}\n")
        linker.chmod(0o755)
    candidate = flydsl_kernels[2].candidate()
    submit(process, flydsl_kernels[0].candidate())
    result = process.submit(with_rocm, str(tmp_path), candidate).result()
    assert (result.status, result.files) == (Status.COMPILE_ERROR, {})
    assert result.reason.startswith("DSLCompileError: ")
    assert "lld" in result.reason


def test_an_entry_that_was_not_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has written no entry"):
        checked([tmp_path / "folder" / "entry.pkl"], PROFILE)
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_directory_that_takes_no_entry_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        checked([tmp_path / "file" / "entry.pkl"], PROFILE)


def test_what_is_no_entry_is_refused(tmp_path: Path) -> None:
    (tmp_path / "entry.pkl").write_bytes(b"torn")
    with pytest.raises(ValueError, match="unreadable"):
        checked([tmp_path / "entry.pkl"], PROFILE)


def test_a_process_compiles_for_one_architecture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flydsl_builder, "_prepared_for", "gfx942")
    prepare("gfx942")
    with pytest.raises(FlytuneError, match="compiles for gfx942, not gfx950"):
        prepare("gfx950")


def test_positions_are_those_of_python() -> None:
    def function(a: int) -> int:
        return sum(a * b for b in range(a)) if a else 0

    code = function.__code__
    positions = list(code.co_positions())
    for index in range(0, 2 * len(positions), 2):
        assert flydsl_builder._position(code, index) == positions[index // 2]
    assert flydsl_builder._position(code, -1) == (None,) * 4
