"""What builders compile of FlyDSL's is found by the runner, which compiles nothing.

FlyDSL itself runs, in its mode that launches nothing: no device of gfx950 is here, so a
kernel that is found leaves its output unwritten.
"""

from pathlib import Path

import pytest
from flydsl_candidates import builder, of_case
from flydsl_runner import built, checked

from flytune.caches.columns import Status


@pytest.mark.slow
def test_a_built_kernel_is_found_and_an_unbuilt_one_is_reported(tmp_path: Path) -> None:
    one = of_case("mm_bf16_16x1024x4096")[0]
    with builder(tmp_path / "builder") as process:
        build_result = process.submit(built, one).result()
    assert (build_result.status, build_result.reason) == (Status.OK, "")
    with builder(tmp_path / "runner") as process:
        found = process.submit(checked, one, build_result.files).result()
    assert found.status is Status.WRONG_RESULT
    assert found.reason.startswith("relative error nan exceeds ")
    with builder(tmp_path / "unbuilt") as process:
        absent = process.submit(checked, one, {}).result()
    assert (absent.status, absent.reason) == (
        *(Status.FAULT, "reached the runner without a build"),
    )
