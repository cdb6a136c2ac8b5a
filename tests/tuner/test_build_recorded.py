"""Builds that are decided by other people's times, from the model to the bundle."""

from pathlib import Path

import pytest
from builds import DATA, Build, flytune, run_build, unpacked

from flytune.caches.bundle import Bundle
from flytune.caches.records import TuningRecord, read_records
from flytune.tuner.candidate import ATEN, FLYDSL
from flytune.tuner.publish import RECORDS_NAME
from flytune.tuner.recorded_runner import METHOD

TABLE = DATA / "recorded" / "flydsl.csv"


def arguments_for(model: str, quant: str, folder: Path) -> tuple[str, ...]:
    return (
        *("build", "--model", model, "--tokens", "32", "--target", "mi355x"),
        *("--engine", "vllm", "--quant", quant, "--backends", "ATEN,FLYDSL"),
        "--allow-unreached",
        *("--runner", f"recorded:{TABLE}", "--work", str(folder / "work")),
    )


def built(model: str, quant: str, folder: Path) -> Build:
    out = folder / "bundle.tar.zst"
    return run_build(arguments_for(model, quant, folder), out, folder / "home")


def records(build: Build, folder: Path) -> tuple[TuningRecord, ...]:
    return read_records(unpacked(build.bundle, folder) / RECORDS_NAME)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return built("Llama-3.1-8B", "mxfp8", tmp_path_factory.mktemp("recorded"))


def test_the_bundle_says_whose_times_they_are(build: Build) -> None:
    manifest = Bundle.open(build.bundle).manifest
    assert (manifest.timed_on, manifest.software) == (None, "stand-in")
    # The published part of the table: o_proj, and gate and up together.
    assert manifest.coverage["tuned"] == 2
    (source,) = manifest.coverage["sources"]
    assert source.startswith("flydsl.csv: pytorch/pytorch#194987")
    assert manifest.coverage["sources"][source] == 4
    assert "by 4 times that others recorded; none was timed here" in build.stdout
    # vLLM runs none of them through Inductor on such a device.
    assert (manifest.coverage["planned"], manifest.coverage["reached"]) == (5, 0)
    assert manifest.coverage["unreached"] == {
        "custom_op:_mxfp8_linear_kernel": 4,
        "eager": 1,
    }
    words = "0 of 5 GEMMs are reached by Inductor; the others are custom_op:_mxfp8"
    assert words in build.stdout
    assert words in build.log
    won = {w["modules"][0].rpartition(".")[2]: w["backend"] for w in manifest.winners}
    assert (won["o_proj"], won["gate_up_proj"]) == (FLYDSL, FLYDSL)
    # Without a time the library's kernel is left.
    assert (won["qkv_proj"], won["down_proj"], won["lm_head"]) == (ATEN,) * 3


def test_a_missing_time_is_missing(build: Build, tmp_path: Path) -> None:
    rows = records(build, tmp_path / "b")
    timed = [row for row in rows if row.median_us is not None]
    assert len(timed) == 4
    assert {row.method for row in timed} == {METHOD}
    speedups = {
        row.n: round(library.median_us / row.median_us, 2)
        for row in timed
        for library in timed
        if row.backend == FLYDSL and library.backend == ATEN and library.n == row.n
        if library.median_us is not None and row.median_us is not None
    }
    # As published: 65.5 over 31.3 and 254.1 over 181.6 TFLOP/s.
    assert speedups == {4096: 2.09, 28672: 1.4}
    untimed = [row for row in rows if row.median_us is None]
    assert {row.reason for row in untimed} == {"no recorded time"}
    assert {row.source for row in untimed} == {None}


def test_only_what_has_a_time_is_compiled(build: Build) -> None:
    # One candidate of FlyDSL's stands for it; both shapes may ask for one kernel.
    assert Bundle.open(build.bundle).manifest.coverage["compiled"] in (1, 2)


@pytest.mark.slow
def test_plain_products_have_times_too(tmp_path: Path) -> None:
    made = built("Llama-3.1-8B", "bf16", tmp_path)
    coverage = Bundle.open(made.bundle).manifest.coverage
    assert (coverage["missing"], coverage["unplanned"]) == ({}, [])
    assert (coverage["lists"], coverage["tuned"]) == (5, 1)
    rows = records(made, tmp_path / "b")
    assert sum(row.winner for row in rows) == 5
    # Both lose to the library as published, in its own shape.
    (won,) = (row for row in rows if row.winner and row.median_us is not None)
    assert (won.backend, won.n, won.k) == (ATEN, 4096, 4096)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["Qwen3-32B", "Llama-3.3-70B"])
def test_a_table_of_other_shapes_is_told_before_anything_is_compiled(
    tmp_path: Path, model: str
) -> None:
    done = flytune(
        tmp_path / "home", *arguments_for(model, "mxfp4", tmp_path), "--out", "b"
    )
    assert (done.returncode, done.stdout) == (1, "")
    said = f"error: no list of this build has a recorded time: {TABLE}\n"
    assert said in done.stderr
    assert "] build: " not in done.stderr
