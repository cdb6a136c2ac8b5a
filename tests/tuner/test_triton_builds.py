"""Triton's kernels, really compiled for a device that is not here."""

import json
import multiprocessing
import pickle
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from accelerator import blind, built_again
from builds import Build

from flytune.caches.columns import Status
from flytune.caches.device_profile import find_profile
from flytune.caches.triton_cache import is_group
from flytune.tuner.builder import build
from flytune.tuner.candidate import ATEN, BuildResult, Candidate, Enumeration
from flytune.tuner.runner import place_files

H200 = find_profile("h200")
# Of an ELF file: machine code for CUDA devices.
EM_CUDA = 190


def process(folder: Path) -> ProcessPoolExecutor:
    """A process of its own, that sees no device."""
    return ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=blind,
        initargs=(str(folder),),
    )


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    with process(tmp_path_factory.mktemp("builder")) as made:
        yield made


@pytest.fixture(scope="module")
def candidates(compiled_build: Build) -> tuple[Candidate, ...]:
    """One list of a square Llama."""
    (path,) = compiled_build.work.glob("*/lists.pickle")
    found: Enumeration = pickle.loads(path.read_bytes())
    return found.lists[0].candidates


@pytest.fixture(scope="module")
def builds(
    builder: ProcessPoolExecutor, candidates: tuple[Candidate, ...]
) -> Mapping[str, BuildResult]:
    results = builder.map(build, candidates, [H200] * len(candidates))
    return {result.choice_hash: result for result in results}


def cubin(result: BuildResult) -> bytes:
    (code,) = [text for name, text in result.files.items() if name.endswith(".cubin")]
    return code


def test_every_candidate_is_compiled_for_the_device(
    builds: Mapping[str, BuildResult], candidates: tuple[Candidate, ...]
) -> None:
    assert builds.keys() == {c.choice_hash for c in candidates}
    for one in candidates:
        result = builds[one.choice_hash]
        assert (result.status, result.reason) == (Status.OK, "")
        if one.backend == ATEN:
            assert result == BuildResult(one.choice_hash, Status.OK)
            continue
        assert result.compile_s > 0
        code = cubin(result)
        assert code.startswith(b"\x7fELF")
        assert int.from_bytes(code[18:20], "little") == EM_CUDA
    codes = {cubin(result) for result in builds.values() if result.files}
    assert len(codes) == len(candidates) - 1


def test_files_are_those_that_a_kernel_is_loaded_from(
    builds: Mapping[str, BuildResult], candidates: tuple[Candidate, ...]
) -> None:
    for one in candidates:
        if one.backend == ATEN:
            continue
        files = {
            Path(name): text for name, text in builds[one.choice_hash].files.items()
        }
        (source,) = [path for path in files if path.suffix == ".py"]
        assert files.pop(source).decode() == one.source
        # All in one folder of Triton's cache, and no stage on the way to the kernel.
        (folder,) = {path.parent for path in files}
        assert folder.parts[:2] == ("triton", "0")
        assert sorted(path.name for path in files) == [
            *("__grp__triton_mm.json", "triton_mm.cubin", "triton_mm.json"),
        ]
        row = json.loads(files[folder / "triton_mm.json"])
        assert row["target"] == {"backend": "cuda", "arch": 90, "warp_size": 32}
        config = json.loads(one.config)
        assert row["num_warps"] == int(config["num_warps"])
        assert row["num_stages"] == int(config["num_stages"])


def test_rays_workers_build_under_the_same_keys(
    builds: Mapping[str, BuildResult], compiled_build: Build
) -> None:
    (built,) = compiled_build.work.glob("*/built")
    # The code is not the same in each byte: it names the source's path for debuggers.
    theirs = {path.parent.name for path in built.rglob("*.cubin")}
    names = [Path(name) for result in builds.values() for name in result.files]
    assert {path.parent.name for path in names if path.suffix == ".cubin"} == theirs


def test_placed_files_are_found_by_triton_wherever_they_are(
    builds: Mapping[str, BuildResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton.runtime.cache import FileCacheManager

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton" / "0"))
    for result in builds.values():
        place_files(result.files)
        place_files(result.files)
    groups = [path for path in tmp_path.rglob("*.json") if is_group(path)]
    assert len(groups) == len(builds) - 1
    for path in groups:
        group = FileCacheManager(path.parent.name).get_group("triton_mm.json")
        assert group == {
            name: str(path.parent / name)
            for name in ("triton_mm.cubin", "triton_mm.json")
        }


def test_another_process_compiles_none_of_what_was_placed(
    builds: Mapping[str, BuildResult],
    candidates: tuple[Candidate, ...],
    tmp_path: Path,
) -> None:
    first = tuple(builds.values())
    with process(tmp_path) as other:
        again = other.submit(built_again, first, candidates, H200).result()
    assert {(result.status, len(result.files)) for result in again} == {(Status.OK, 0)}
    placed = {path.name for path in tmp_path.rglob("*.cubin")}
    assert placed == {"triton_mm.cubin"}


@pytest.mark.parametrize(
    ("old", "new", "status", "said"),
    [
        ("def triton_mm(", "def triton_mm(((", Status.COMPILE_ERROR, "SyntaxError"),
        ("tl.dot(", "tl.no_such_thing(", Status.COMPILE_ERROR, "no_such_thing"),
        ("def triton_mm(", "def other(", Status.COMPILE_ERROR, "triton_mm"),
    ],
)
def test_a_kernel_that_does_not_compile_is_a_row(
    builder: ProcessPoolExecutor,
    candidates: tuple[Candidate, ...],
    old: str,
    new: str,
    status: Status,
    said: str,
) -> None:
    good = next(c for c in candidates if c.backend != ATEN)
    assert old in good.source
    # Its module's name is of its content, so that it is no other's file.
    request = pickle.loads(good.request)
    request.module_cache_key = "x" + "abcdefghij"[len(said) % 10] * 51
    bad = replace(
        good,
        source=good.source.replace(old, new),
        request=pickle.dumps(request),
    )
    result = builder.submit(build, bad, H200).result()
    assert (result.status, result.files) == (status, {})
    assert said in result.reason
    assert "\n" not in result.reason


def test_a_kernel_too_large_for_the_device_never_reaches_it(
    candidates: tuple[Candidate, ...], tmp_path: Path
) -> None:
    good = next(c for c in candidates if c.backend != ATEN)
    small = replace(H200, max_shared_bytes=1024)
    with process(tmp_path) as fresh:
        result = fresh.submit(build, good, small).result()
    assert (result.status, result.files) == (Status.OVER_RESOURCES, {})
    assert result.reason.endswith("of 1024 bytes")
