import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from flytune.caches.host import ABSENT
from flytune.caches.target import PartStatus, Target, compare

BUILT = Target(
    {
        "kind": "cpu",
        "vendor": "amd",
        "product": "AMD EPYC 9654 96-Core Processor",
        "arch": "x86_64",
        "isa": ("avx2", "avx512f"),
        "cores": 96,
        "threads": 48,
        "l1d_bytes": 32768,
        "l2_bytes": 2**20,
        "l3_bytes": 2**25,
        "memory_bytes": 2**38,
    },
    {
        "torch": "2.15.0+cu132",
        "torch_git": "d0f2",
        "torch_key": "ab",
        "triton": "3.9.0",
        "flydsl": ABSENT,
        "python_abi": "cpython-311-x86_64-linux-gnu",
        "glibc": "glibc 2.36",
        "compiler": "g++: g++ 12.2.0",
    },
)


def changed(half: str, **parts: Any) -> Target:
    return replace(BUILT, **{half: {**getattr(BUILT, half), **parts}})


def status(half: str, name: str, value: object) -> PartStatus:
    results = compare(BUILT, changed(half, **{name: value}))
    others = {r.status for r in results if r.part != f"{half}.{name}"}
    assert others == {PartStatus.HIT}
    return next(r.status for r in results if r.part == f"{half}.{name}")


def test_the_same_target_hits() -> None:
    assert {r.status for r in compare(BUILT, BUILT)} == {PartStatus.HIT}


@pytest.mark.parametrize(
    ("half", "name", "value"),
    [
        ("hardware", "kind", "cuda"),
        ("hardware", "arch", "aarch64"),
        ("hardware", "isa", ("avx2",)),
        ("hardware", "l1d_bytes", 49152),
        ("hardware", "l2_bytes", 2**21),
        ("hardware", "threads", 2),
        ("software", "torch", "2.15.1"),
        ("software", "torch_git", "0000"),
        ("software", "torch_key", "cd"),
        ("software", "python_abi", "cpython-312-x86_64-linux-gnu"),
        ("software", "compiler", "g++: g++ 13.1.0"),
    ],
)
def test_part_that_decides(half: str, name: str, value: object) -> None:
    assert status(half, name, value) is PartStatus.MISS


@pytest.mark.parametrize(
    ("half", "name", "value"),
    [
        ("hardware", "vendor", "intel"),
        ("hardware", "product", "AMD EPYC"),
        ("hardware", "l3_bytes", 2**24),
        ("hardware", "cores", 2),
        ("hardware", "memory_bytes", 2**34),
        ("software", "glibc", "glibc 2.39"),
        ("software", "triton", ABSENT),
        ("software", "flydsl", "0.3.4"),
    ],
)
def test_part_that_only_warns_on_a_cpu(half: str, name: str, value: object) -> None:
    assert status(half, name, value) is PartStatus.WARNING


@pytest.mark.parametrize(
    ("vendor", "name", "decides"),
    [
        ("nvidia", "triton", True),
        ("nvidia", "flydsl", False),
        ("amd", "triton", True),
        ("amd", "flydsl", True),
    ],
)
def test_kernel_languages_decide_on_an_accelerator(
    vendor: str, name: str, decides: bool
) -> None:
    built = changed("hardware", kind="cuda", vendor=vendor)
    live = replace(built, software={**built.software, name: "9.9"})
    assert (PartStatus.MISS in {r.status for r in compare(built, live)}) == decides


@pytest.mark.parametrize("value", [None, "ab"])
def test_part_known_to_one_side_only(value: str | None) -> None:
    built = changed("software", torch_key=value)
    live = changed("software", torch_key=None)
    result = {r.part: r for r in compare(built, live)}["software.torch_key"]
    assert result.status is PartStatus.UNKNOWN
    assert result.reason


def test_part_that_no_rule_knows() -> None:
    live = changed("hardware", partition="mig-1g")
    assert compare(live, live)[-1].status is PartStatus.HIT
    assert compare(live, BUILT)[-1].status is PartStatus.UNKNOWN
    other = changed("hardware", partition="none")
    assert compare(live, other)[-1].status is PartStatus.MISS


def test_line_of_a_part() -> None:
    live = changed("hardware", isa=("avx2",))
    miss = next(r for r in compare(BUILT, live) if r.status is PartStatus.MISS)
    assert str(miss) == "hardware.isa: built for `avx2 avx512f`, here `avx2`"


def test_json_round_trip() -> None:
    assert Target.from_json(json.loads(json.dumps(BUILT.to_json()))) == BUILT


@pytest.mark.parametrize(
    ("parts", "slug"),
    [
        ({}, "cpu-amd-epyc-9654-avx512"),
        ({"product": "AMD EPYC"}, "cpu-amd-epyc-avx512"),
        ({"product": None, "isa": None, "vendor": None}, "cpu-x86_64"),
        (
            {
                "vendor": "intel",
                "product": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
                "isa": ("amx_tile", "avx2", "avx512f"),
            },
            "cpu-intel-xeon-platinum-8481c-amx",
        ),
        (
            {
                "kind": "cuda",
                "vendor": "nvidia",
                "product": "NVIDIA H200",
                "arch": "sm_90",
                "isa": None,
            },
            "cuda-nvidia-h200-sm_90",
        ),
    ],
)
def test_slug(parts: dict[str, Any], slug: str) -> None:
    assert changed("hardware", **parts).slug == slug


def test_this_machine_without_torch() -> None:
    code = """
import json, sys
from flytune.caches.target import Target
print(json.dumps(Target.here(threads=2).to_json()))
assert not {"torch", "triton", "flydsl", "ray"} & set(sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    target = Target.from_json(json.loads(run.stdout))
    assert target.hardware["kind"] == "cpu"
    assert target.hardware["threads"] == 2
    assert target.software["torch_key"] is None
    assert {r.status for r in compare(target, Target.here(threads=2))} == {
        PartStatus.HIT,
        PartStatus.UNKNOWN,
    }


def test_torch_version_is_that_of_the_import() -> None:
    import torch

    software = Target.here(threads=1).software
    assert software["torch"] == str(torch.__version__)
    assert software["torch_git"] == torch.version.git_version


def test_absent_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CXX", "no-such-compiler")
    assert Target.here(threads=1).software["compiler"] == ABSENT
