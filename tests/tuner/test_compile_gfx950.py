"""A build for an AMD GPU that is not here: its lists, kernels and their proof."""

from pathlib import Path

import pytest
from builds import SQUARE, Build, flytune, repacked, run_build, unpacked, verified
from click.testing import CliRunner

from flytune.caches.bundle import Bundle
from flytune.caches.device_profile import find_profile
from flytune.caches.directories import FLYDSL_DIR
from flytune.caches.records import read_records
from flytune.caches.verify_kernels import ASKED_NAME
from flytune.tuner.candidate import ATEN, FLYDSL
from flytune.tuner.cli import main
from flytune.tuner.publish import RECORDS_NAME

MI355X = find_profile("mi355x")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("gfx950")
    arguments = (
        *("build", "--model", str(SQUARE), "--tokens", "64,128"),
        *("--target", "MI355X", "--compile-only", "--threads", "2"),
        *("--backends", "ATEN,FLYDSL", "--work", str(folder / "work")),
    )
    return run_build(arguments, folder / "bundle.tar.zst", folder / "home")


def entries(bundle: Path) -> list[str]:
    files = Bundle.open(bundle).manifest.files
    return [name for name in files if name.startswith(f"inductor/{FLYDSL_DIR}/")]


def test_the_manifest_says_what_was_not_run(build: Build) -> None:
    manifest = Bundle.open(build.bundle).manifest
    assert manifest.target["hardware"] == MI355X.hardware()
    assert (manifest.timed_on, manifest.software) == (None, "stand-in")
    assert manifest.winners == ()
    assert manifest.coverage["enumerated"] == "isolated"
    tools = manifest.bake["tools"]
    assert tools["kind"] in ("rocm", "triton-wheel")
    assert all(len(tools[name]) == 64 for name in ("ockl", "ocml", "linker"))
    assert manifest.policy["env"]["FLYDSL_GPU_ARCH"] == "gfx950"
    assert manifest.policy["inductor"]["flydsl_enable_autotuning"] is True


def test_every_planned_gemm_has_a_list(build: Build) -> None:
    coverage = Bundle.open(build.bundle).manifest.coverage
    assert (coverage["missing"], coverage["unplanned"]) == ({}, [])
    # All projections have one size: a list a token count.
    assert coverage["lists"] == 2


def test_a_kernel_is_compiled_once_for_all_shapes(build: Build, tmp_path: Path) -> None:
    rows = read_records(unpacked(build.bundle, tmp_path / "b") / RECORDS_NAME)
    assert {row.status for row in rows} == {"ok"}
    flydsl = [row for row in rows if row.backend == FLYDSL]
    assert {row.m for row in flydsl} == {64, 128}
    assert len({row.choice_hash for row in flydsl}) == len(flydsl)
    digests = {row.kernel_digest for row in flydsl}
    assert len(digests) == len(entries(build.bundle)) < len(flydsl)
    assert {row.backend for row in rows} == {ATEN, FLYDSL}


def test_each_kernel_is_found_in_another_place(build: Build) -> None:
    row = verified(build.bundle)
    assert row["ok"]
    assert row["lookups"] == {"flydsl hit": len(entries(build.bundle))}


def test_a_kernel_that_is_gone_is_named(build: Build, tmp_path: Path) -> None:
    folder = unpacked(build.bundle, tmp_path / "b")
    gone = folder / entries(build.bundle)[0]
    gone.unlink()
    row = verified(repacked(folder, tmp_path / "changed"))
    assert row["ok"] is False
    (failure,) = row["failures"]
    name = f"{gone.parent.name}/{gone.name}"
    assert failure.startswith(f"FlyDSL kernel is absent: {name}: ")
    assert row["lookups"]["flydsl miss"] == 1


def test_a_damaged_list_of_kernels_is_one_line(build: Build, tmp_path: Path) -> None:
    folder = unpacked(build.bundle, tmp_path / "b")
    (folder / ASKED_NAME).write_text("[{}]")
    done = flytune(tmp_path, "verify", repacked(folder, tmp_path / "changed"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: bundle's kernels cannot be read: {ASKED_NAME}\n"


def test_attention_is_said_to_be_torchs(build: Build) -> None:
    line = (
        "attention is not ours: AOTriton's kernels come tuned and prebuilt with torch"
    )
    assert line in build.stdout.splitlines()


def test_a_second_build_compiles_nothing(build: Build, tmp_path: Path) -> None:
    done = flytune(tmp_path, *build.arguments, "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    assert "] build: " not in done.stderr
    first, second = (
        Bundle.open(b).manifest for b in (build.bundle, tmp_path / "again")
    )
    assert {n: f.sha256 for n, f in first.files.items()} == {
        n: f.sha256 for n, f in second.files.items()
    }


def test_it_is_not_installed(build: Build, tmp_path: Path) -> None:
    done = flytune(tmp_path / "home", "install", build.bundle)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: bundle is for another target: ")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            (),
            "error: the target is not here to be timed on: mi355x, here is no "
            "accelerator\n",
        ),
        (
            ("--compile-only", "--target", "h200", "--backends", "FLYDSL"),
            "error: FlyDSL is for AMD GPUs, and this is NVIDIA H200\n",
        ),
        (
            ("--device", "cpu", "--quant", "mxfp4"),
            "error: no program to bake: the linears of mxfp4\n",
        ),
        (
            ("--device", "cpu", "--tp", "2"),
            "error: no program to bake: one of 2 ranks\n",
        ),
    ],
)
def test_what_cannot_be_built(tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    target = () if {"--target", "--device"} & {*more} else ("--target", "mi355x")
    fixed = ("build", "--model", SQUARE, "--tokens", "1", "--work", tmp_path / "work")
    arguments = (*fixed, *target, *more, "--out", tmp_path / "b")
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert not (tmp_path / "b").exists()
