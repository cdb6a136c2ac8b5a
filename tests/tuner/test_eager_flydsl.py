"""torch's own FlyDSL kernels, compiled and found without the device."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from flydsl_candidates import ARCH, PROFILE, builder, entry_of, place

from flytune.caches.columns import Status
from flytune.caches.flydsl_cache import missing_entries
from flytune.caches.flydsl_eager import RMS_NORM, TOPK, EagerKernel
from flytune.caches.policy import rocm_policy
from flytune.tuner.candidate import BuildResult
from flytune.tuner.eager_flydsl import (
    OPS,
    build_all_eager,
    build_eager,
    kernels_for,
    rms_norm_kernel,
    topk_kernel,
)

NORM = EagerKernel(RMS_NORM, 4096, "bfloat16")
TOP = EagerKernel(TOPK, 1024, k=2)


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, BuildResult]:
    kernels = (NORM, TOP, EagerKernel(TOPK, 1000, k=3), EagerKernel("softmax", 8))
    with builder(tmp_path_factory.mktemp("eager")) as process:
        results = list(process.map(build_eager, kernels, [PROFILE] * len(kernels)))
    return {result.choice_hash: result for result in results}


def test_both_are_compiled_and_found_in_another_place(
    builds: Mapping[str, BuildResult], tmp_path: Path
) -> None:
    good = {kernel.name: builds[kernel.name] for kernel in (NORM, TOP)}
    assert [(r.status, r.reason) for r in good.values()] == [(Status.OK, "")] * 2
    assert entry_of(good[NORM.name]).startswith("flydsl_compile_cache/launch_rmsnorm_")
    root = place(good, tmp_path)
    other = EagerKernel(RMS_NORM, 8192, "bfloat16")
    (line,) = missing_entries(root, [NORM, TOP, other], ARCH)
    assert line.startswith("FlyDSL kernel is absent: launch_rmsnorm_")
    assert line.endswith(": eager rms_norm n=8192 bfloat16")


def test_what_torch_has_no_kernel_for_is_a_row(
    builds: Mapping[str, BuildResult],
) -> None:
    for name in ("eager topk n=1000 k=3 float32", "eager softmax n=8 float32"):
        assert builds[name].status is Status.COMPILE_ERROR
        assert builds[name].reason.startswith("ValueError: no such kernel of torch's")


def test_torchs_own_rule_says_which_norms_it_takes() -> None:
    assert rms_norm_kernel(4096, "bfloat16", 8192, PROFILE) == NORM
    assert rms_norm_kernel(4096, "bfloat16", 1, PROFILE) is None
    assert rms_norm_kernel(4096, "int32", 8192, PROFILE) is None
    assert rms_norm_kernel(1024, "bfloat16", 8192, PROFILE) is None
    assert rms_norm_kernel(8192, "float32", 2**20, PROFILE) is None


def test_torchs_own_rule_says_which_top_ks_it_takes() -> None:
    rows = 256
    assert topk_kernel(1024, 2, rows, PROFILE) == TOP
    assert topk_kernel(1024, 2, rows, PROFILE, deterministic=True) == TOP
    assert topk_kernel(1024, 2, rows - 1, PROFILE) is None
    assert topk_kernel(1000, 2, rows, PROFILE) is None
    assert topk_kernel(32768, 64, 2**16, PROFILE) is None
    strict = topk_kernel(32768, 64, rows, PROFILE, deterministic=True)
    assert strict == EagerKernel(TOPK, 32768, k=64, deterministic=True)
    assert strict.name == "eager topk n=32768 k=64 float32 deterministic"


def test_another_architecture_has_none() -> None:
    from dataclasses import replace

    older = replace(PROFILE, arch="gfx942")
    assert rms_norm_kernel(4096, "bfloat16", 8192, older) is None
    assert topk_kernel(1024, 2, 256, older) is None


def test_a_models_sizes_name_the_kernels() -> None:
    sizes = {"hidden": 8192, "vocabulary": 128256, "dtype": "bfloat16"}
    found = tuple(kernels_for(OPS, sizes, (1, 64, 4096, 8192), PROFILE))
    assert found[0] == EagerKernel(RMS_NORM, 8192, "bfloat16")
    tops = [kernel for kernel in found if kernel.op == TOPK]
    assert found[1:] == tuple(tops)
    assert {kernel.n for kernel in tops} == {128256}
    assert len({kernel.k for kernel in tops}) == len(tops) > 0
    assert tuple(kernels_for(OPS, sizes, (1, 64), PROFILE)) == ()
    assert tuple(kernels_for(("rmsnorm",), sizes, (4096,), PROFILE)) == found[:1]


def test_they_are_compiled_in_a_process_of_their_own(tmp_path: Path) -> None:
    sizes = {"hidden": 4096, "vocabulary": 1000, "dtype": "bfloat16"}
    policy = rocm_policy(tokens=(8192,), threads=1, attention="sdpa", arch=ARCH)
    (one,) = build_all_eager(("rmsnorm",), sizes, policy, PROFILE, tmp_path)
    assert (one.kernel, one.result.status) == (NORM, Status.OK)
    root = place({one.kernel.name: one.result}, tmp_path / "placed")
    assert missing_entries(root, [NORM], ARCH) == ()
