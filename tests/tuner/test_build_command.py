"""Options that contradict each other, or name what is not there."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import click
import pytest
from builds import LLAMA, Build, copied
from click.testing import CliRunner, Result

from flytune.caches import device_profile
from flytune.caches.device_profile import find_profile
from flytune.tuner import plan_device
from flytune.tuner.build_arguments import KNOWN_BACKENDS, parse_backends, parse_ops
from flytune.tuner.cli import main

COMPILE = ("--target", "h200", "--compile-only")


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (device_profile, plan_device):
        monkeypatch.setattr(module, "live_profile", lambda: None)


def refused(folder: Path, *arguments: object, code: int = 1) -> Result:
    """A build that must be refused before it has made anything."""
    before = sorted(folder.rglob("*"))
    places = ("--work", folder / "work", "--out", folder / "b.tar.zst")
    fixed = ("build", "--model", LLAMA, "--tokens", "8", *places)
    result = CliRunner().invoke(main, [*map(str, (*fixed, *arguments))])
    assert (result.exit_code, result.stdout) == (code, "")
    assert sorted(folder.rglob("*")) == before
    return result


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (
            ("--target", "h2000", "--compile-only"),
            "no such target: `h2000`",
            "known are h200, mi350x, mi355x, or give a file that "
            "`flytune doctor --profile` wrote",
        ),
        (
            ("--target", "", "--compile-only"),
            "no such target: ``",
            "known are h200, mi350x, mi355x, or give a file that "
            "`flytune doctor --profile` wrote",
        ),
        (
            ("--target", "h200"),
            "the target is not here to be timed on: h200, here is no accelerator",
            "compile for it with --compile-only",
        ),
        (
            ("--compile-only",),
            "nothing to compile for: --compile-only and --runner are for accelerators",
            "name one with --target",
        ),
        (
            ("--compile-only", "--device", "cpu"),
            "nothing to compile for: --compile-only and --runner are for accelerators",
            "name one with --target",
        ),
        (
            (*COMPILE, "--device", "cpu"),
            "--device cpu and --target contradict each other: h200",
            None,
        ),
        (
            ("--device", "cuda"),
            "no accelerator here, or torch cannot use it",
            "name one with --target and --compile-only, or --device cpu",
        ),
        (
            (*COMPILE, "--policy", "frozen"),
            "the frozen policy is for CPUs, and this is for NVIDIA H200",
            "leave --policy out, or build for the CPU with --device cpu",
        ),
    ],
)
def test_what_cannot_end_well_is_refused_first(
    tmp_path: Path, arguments: tuple[str, ...], error: str, hint: str | None
) -> None:
    expected = f"error: {error}\n" + (f"hint: {hint}\n" if hint else "")
    assert refused(tmp_path, *arguments).stderr == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--search", "smartest"), "Invalid value for '--search'"),
        (("--device", "tpu"), "Invalid value for '--device'"),
        (("--backends", "CUTLASS"), "unknown backend: `CUTLASS`; known are ATEN, "),
        (("--backends", ""), "unknown backend: ``; known are ATEN, TRITON, FLYDSL"),
        (("--ops", "topk"), "a build is of GEMMs: add `gemm`"),
        (("--runner", "fast"), "unknown runner: `fast`; known is recorded:FILE"),
        (("--runner", "recorded:/no/such"), "no such file: `/no/such`"),
        (("--backends", "ATEN,,TRITON"), "unknown backend: ``; known are ATEN, "),
        (("--target-env", "/no/such/place"), "Path '/no/such/place' does not exist"),
        (("--exclude",), "Option '--exclude' requires an argument"),
        (("--target",), "Option '--target' requires an argument"),
    ],
)
def test_a_value_outside_its_set_is_wrong_usage(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = refused(tmp_path, *arguments, code=2)
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_a_profile_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("{")
    result = refused(tmp_path, "--target", path, "--compile-only")
    assert result.stderr == f"error: device profile is not JSON: {path}\n"
    row = find_profile("h200").to_json()
    path.write_text(json.dumps({**row, "max_shared_bytes": None}))
    result = refused(tmp_path, "--target", path, "--compile-only")
    assert result.stderr == "error: device profile is malformed: `max_shared_bytes`\n"


@pytest.mark.parametrize(
    ("changes", "properties", "error"),
    [
        ({"vendor": "intel"}, {}, "no builds for devices of this vendor: intel"),
        (
            {},
            {"name": "NVIDIA L4", "multi_processor_count": 58},
            "Inductor does not tune on so small a device: NVIDIA L4 has 58 "
            "multiprocessors, and 68 are needed",
        ),
        ({}, {"total_memory": 2**30}, "no memory for "),
    ],
)
def test_a_device_that_nothing_is_built_for(
    tmp_path: Path, changes: dict[str, str], properties: dict[str, object], error: str
) -> None:
    h200 = find_profile("h200")
    profile = replace(h200, **changes, properties={**h200.properties, **properties})
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile.to_json()))
    result = refused(tmp_path, "--target", path, "--compile-only")
    assert result.stderr.startswith(f"error: {error}")
    assert result.stderr.count("error: ") == 1


def test_an_older_bundle_of_another_target(
    compiled_build: Build, tmp_path: Path
) -> None:
    h200 = find_profile("h200")
    fewer = {**h200.properties, "name": "NVIDIA H100", "multi_processor_count": 114}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(replace(h200, properties=fewer).to_json()))
    older = ("--from", compiled_build.bundle)
    result = refused(tmp_path, "--target", path, "--compile-only", *older)
    errors = [li for li in result.stderr.splitlines() if li.startswith("error: ")]
    assert errors == [
        "error: older bundle is for another target: hardware.compute_units: built for "
        "`132`, here `114`"
    ]


@pytest.mark.parametrize("excluded", ["unknown", "all"])
def test_candidates_that_cannot_be_excluded(
    compiled_build: Build, tmp_path: Path, excluded: str
) -> None:
    (path,) = compiled_build.work.glob("*/lists.pickle")
    names = ["mm-none"]
    if excluded == "all":
        names = hashes(path)
    work = copied(compiled_build.work, tmp_path / "work")
    arguments = [
        str(work) if argument == str(compiled_build.work) else argument
        for argument in compiled_build.arguments
    ]
    arguments += ["--out", str(tmp_path / "b.tar.zst")]
    for name in names:
        arguments += ["--exclude", name]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    error = {
        "unknown": "no list offers what --exclude names: `mm-none`",
        "all": "--exclude leaves no candidate for mm (64, 128, 128) at "
        "model.layers.*.self_attn.q_proj",
    }[excluded]
    assert result.stderr.splitlines()[-1] == f"error: {error}"
    assert "build: " not in result.stderr
    assert list(tmp_path.iterdir()) == [work]


def hashes(lists: Path) -> list[str]:
    found = pickle.loads(lists.read_bytes())
    return [c.choice_hash for c in found.lists[0].candidates]


def test_backends_are_named_once_in_any_case() -> None:
    assert parse_backends("triton") == ("TRITON",)
    assert parse_backends(" Aten, triton,ATEN ") == ("ATEN", "TRITON")
    assert parse_backends("aten,triton,flydsl") == KNOWN_BACKENDS


def test_ops_are_named_in_any_case_and_gemm_is_one() -> None:
    assert parse_ops("GEMM, topk,gemm") == ("gemm", "topk")
    with pytest.raises(click.BadParameter, match="add `gemm`"):
        parse_ops("rmsnorm")
    with pytest.raises(click.BadParameter, match="unknown op: `softmax`"):
        parse_ops("gemm,softmax")


@pytest.mark.parametrize("where", [("--device", "cpu"), COMPILE])
def test_only_an_amd_gpu_has_kernels_besides(
    tmp_path: Path, where: tuple[str, ...]
) -> None:
    done = refused(tmp_path, *where, "--ops", "gemm,rmsnorm")
    assert "only FlyDSL has kernels to prebuild for --ops rmsnorm" in done.stderr
