from dataclasses import replace

import pytest

from flytune.caches.host import Part
from flytune.caches.target import Target
from flytune.tuner.nodes import difference, kernel_target

HERE = Target(
    {"arch": "x86_64", "isa": ("avx2", "avx512f")},
    {
        "torch": "2.10.0",
        "torch_git": "abc",
        "python_abi": "cpython-311",
        "compiler": "g++: 12.2",
        "glibc": "glibc 2.36",
    },
)


def test_a_node_like_this_host_is_taken() -> None:
    assert difference(HERE, HERE) == ""


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        ("arch", "aarch64", "hardware.arch: `aarch64` there, `x86_64` here"),
        ("isa", ("avx2",), "hardware.isa: `avx2` there, `avx2 avx512f` here"),
        ("torch", "2.9.1", "software.torch: `2.9.1` there, `2.10.0` here"),
        ("torch_git", "abd", "software.torch_git: `abd` there, `abc` here"),
        ("python_abi", "312", "software.python_abi: `312` there, `cpython-311` here"),
        ("compiler", "absent", "software.compiler: `absent` there, `g++: 12.2` here"),
        (
            "glibc",
            "glibc 2.40",
            "software.glibc: `glibc 2.40` there, `glibc 2.36` here",
        ),
        ("glibc", "glibc 2.4", ""),
        ("glibc", None, ""),
    ],
)
def test_a_node_that_differs_is_told_of(part: str, value: Part, says: str) -> None:
    if part in HERE.hardware:
        there = replace(HERE, hardware={**HERE.hardware, part: value})
    else:
        there = replace(HERE, software={**HERE.software, part: value})
    assert difference(there, HERE) == says


@pytest.mark.parametrize(
    ("flydsl", "makers"), [(False, {"triton"}), (True, {"triton", "flydsl"})]
)
def test_for_an_accelerator_it_is_triton_and_flydsl_that_decide(
    flydsl: bool, makers: set[str]
) -> None:
    here = kernel_target(accelerator=True, flydsl=flydsl)
    assert set(here.software) == {"torch", "torch_git", "python_abi"} | makers
    assert difference(here, here) == ""
    for maker in makers:
        other = replace(here, software={**here.software, maker: "0.1"})
        assert difference(other, here).startswith(f"software.{maker}: `0.1` there, `")
