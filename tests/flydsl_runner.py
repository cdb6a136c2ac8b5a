"""FlyDSL's candidates in the runner of an accelerator, each in a process of its own."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_cuda import PRODUCT, FakeCuda
from fakes import offered, task_of
from flydsl_candidates import ARCH, PROFILE, Rendered

from flytune.caches.columns import Status
from flytune.caches.flydsl_kernel import set_environment
from flytune.tuner.accelerator_runner import AcceleratorRunner
from flytune.tuner.builder import build
from flytune.tuner.candidate import BuildResult, RunResult
from flytune.tuner.flydsl_builder import prepare
from flytune.tuner.runner import Device


def built(one: Rendered) -> BuildResult:
    """Build a candidate."""
    return build(one.candidate(), PROFILE)


def checked(one: Rendered, files: Mapping[str, bytes]) -> RunResult:
    """Check a candidate with these files, by FlyDSL's mode that launches nothing."""
    set_environment(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]), ARCH)
    prepare(ARCH)
    FakeCuda().install(pytest.MonkeyPatch())
    runner = AcceleratorRunner(Device(PRODUCT, 1, 1, kind="cpu", vendor="amd"))
    *inputs, output = one.specs
    made = offered([one.candidate()], inputs=tuple(inputs), output=output)
    runner.begin(task_of(made))
    return runner.check(BuildResult(one.kernel.name, Status.OK, files=files))
