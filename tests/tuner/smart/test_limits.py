import json
from dataclasses import replace
from importlib import resources

import pytest
from fakes import library, offered
from long_lists import H200, task_of, triton

from flytune.caches.columns import Status
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.records import TuningRecord
from flytune.tuner.candidate import Candidate
from flytune.tuner.decision import untimed_record
from flytune.tuner.smart.earlier import measured
from flytune.tuner.smart.geometry import geometry_of
from flytune.tuner.smart.limits import REGISTERS, SHARED_MEMORY, Limits, excess


def rule_of(one: TuningRecord, limits: Limits = H200) -> str:
    return excess(one, geometry_of(one.backend, one.config), limits)[0]


def record(one: Candidate) -> TuningRecord:
    return untimed_record(task_of(offered([library(), one])), one)


def test_what_failed_for_want_of_shared_memory_is_known_and_nothing_else() -> None:
    records = [observed.record for observed in measured()]
    failed = {r.choice_hash + str(r.inputs_key) for r in records if r.reason}
    told = {r.choice_hash + str(r.inputs_key) for r in records if rule_of(r)}
    assert len(failed) == 865
    assert told == failed
    assert all(r.status is Status.OVER_RESOURCES for r in records if r.reason)


def test_the_limits_of_shipped_profiles_are_known() -> None:
    profiles = resources.files("flytune.caches") / "profiles"
    found = {}
    for path in profiles.iterdir():
        if path.name.endswith(".json"):
            profile = DeviceProfile.from_json(json.loads(path.read_text()))
            found[path.name] = Limits.of(profile)
    assert found["h200.json"] == H200
    mi350x = found["mi350x.json"]
    assert (mi350x.units, mi350x.warp, mi350x.shared_bytes) == (256, 64, 163840)


def test_it_says_how_much_is_wanted() -> None:
    one = record(triton(256, 256, 128, 4, 8))
    rule, words = excess(one, geometry_of(one.backend, one.config), H200)
    assert rule == SHARED_MEMORY
    assert words == "shared memory: 524288 of 232448 bytes"


@pytest.mark.parametrize(("warps", "rule"), [(1, REGISTERS), (8, "")])
def test_an_accumulator_that_no_thread_can_hold_is_left_out(
    warps: int, rule: str
) -> None:
    assert rule_of(record(triton(128, 128, 32, 2, warps))) == rule


def test_where_the_library_or_another_architecture_is_nothing_is_claimed() -> None:
    assert rule_of(record(library())) == ""
    other = replace(H200, arch="sm_100")
    assert rule_of(record(triton(128, 128, 32, 2, 1)), other) == ""


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        # Each ran on the architecture: its last stage is in registers.
        ("float32", (64, 64, 128, 4, 4)),
        ("float8_e4m3fn", (128, 256, 128, 5, 8)),
    ],
)
def test_what_may_run_in_another_type_is_not_left_out(
    dtype: str, sizes: tuple[int, ...]
) -> None:
    one = replace(record(triton(*sizes)), a_dtype=dtype, b_dtype=dtype)
    assert rule_of(one) == ""
