"""How much a build has to do, before and after it has listed that."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fakes import candidate, library, task
from long_lists import long_list

from flytune.caches.device_profile import find_profile
from flytune.caches.policy import cpu_policy
from flytune.caches.target import Target
from flytune.shapes.by_hand import HandList
from flytune.shapes.gemm import GemmShape
from flytune.tuner import amounts as stage
from flytune.tuner.amounts import counted, listed_row, planned, to_compile
from flytune.tuner.cli import main
from flytune.tuner.heat import Heat
from flytune.tuner.options import BuildOptions
from flytune.tuner.past import Past
from flytune.tuner.plan import Plan

SHAPES = tuple(
    GemmShape(op, m, 64, 64, module=f"{op} {m} {where}")
    for op in ("mm", "bmm")
    for m in (1, 64)
    for where in "ab"
)
HEAT = Heat(lambda _: 0.0)
"""Every call takes as long as the shortest."""


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.here(threads=2)


def given(
    folder: Path, target: Target, *, policy: str = "unfrozen", device: str | None = None
) -> Plan:
    made = cpu_policy(policy, tokens=(1, 64), threads=2, attention="eager")
    listed = HandList("m", "m", (), "", "a list")
    profile = None if device is None else find_profile(device)
    work = folder / "own"
    return Plan(listed, SHAPES, None, made, target, profile, 0, work, folder / "out")


def options(folder: Path, search: str = "default") -> BuildOptions:
    fixed: Any = ("m", (1, 64), None, "unfrozen", 2, None, folder, None, None, 2)
    return BuildOptions(*fixed, search=search)


@pytest.mark.parametrize(
    ("policy", "lists"),
    [
        # What two modules call is one list, and one token is no matrix.
        ("unfrozen", 1),
        ("frozen", 3),
    ],
)
def test_a_cpu_has_a_choice_where_its_policy_leaves_one(
    tmp_path: Path, target: Target, policy: str, lists: int
) -> None:
    plan = given(tmp_path, target, policy=policy)
    found = planned(plan, options(tmp_path), Past(), 4, HEAT)
    assert (found.lists, found.compiled, found.timed) == (lists, lists, 2 * lists)
    assert (found.tokens, found.slots, found.devices) == (2, 4, 0)
    assert not found.enumerated
    assert not found.baked


@pytest.mark.parametrize(
    ("search", "tried"), [("default", 20), ("exhaustive", 876), ("smart", 88)]
)
def test_lists_of_an_accelerator_are_as_long_as_they_were(
    tmp_path: Path, target: Target, search: str, tried: int
) -> None:
    plan = given(tmp_path, target, device="h200")
    found = planned(plan, options(tmp_path, search), Past(), 16, HEAT)
    assert found.lists == 2
    assert (found.timed, found.compiled) == (2 * tried, 2 * (tried - 1))


def test_gpus_of_this_host_are_counted(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, driver = given(tmp_path, target, device="h200"), tmp_path / "driver"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(stage, "_DRIVER", driver)
    for number in range(3):
        assert planned(plan, options(tmp_path), Past(), 1, HEAT).devices == max(
            1, number
        )
        (driver / str(number)).mkdir(parents=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert planned(plan, options(tmp_path), Past(), 1, HEAT).devices == 2


def test_what_is_listed_is_known_and_what_is_decided_is_done(
    tmp_path: Path, target: Target
) -> None:
    plan = given(tmp_path, target)
    short = task([library(), candidate("a"), candidate("b")], m=64)
    other = task([library(), candidate("c")], m=128)
    row = listed_row([short, other], HEAT)
    assert sorted(row["lists"].values()) == [[1, 2, 2.0], [2, 3, 2.0]]
    past = Past(listed=row["lists"], decided={min(row["lists"])})
    compiled, timed, us = row["lists"][max(row["lists"])]
    found = planned(plan, options(tmp_path), past, 1, HEAT)
    assert (found.lists, found.compiled, found.timed) == (1, compiled, timed)
    assert found.call_s == pytest.approx(timed * us / 1e6)


def test_what_is_there_is_not_compiled(tmp_path: Path, target: Target) -> None:
    plan = given(tmp_path, target, device="h200")
    some = task([library(), candidate("a"), candidate("b")])
    assert to_compile(some, lambda one: one.choice_hash == "a").keys() == {"b"}
    found = counted(plan, options(tmp_path), [some], lambda _: True, (16, 4), HEAT)
    assert (found.lists, found.compiled, found.timed) == (1, 0, 3)
    assert (found.slots, found.devices) == (16, 4)
    long = long_list()
    smart = options(tmp_path, "smart")
    tried = counted(plan, smart, [long], lambda _: False, (16, 0), HEAT)
    number = len(long.offered.candidates)
    assert tried.timed == round(0.1 * number) < number
    assert tried.devices == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--budget", "5"), 2, "no budget: `5`; such are 90s, 30m, 2h, 4gpu-h and $20"),
        (("--budget", "0m"), 2, "a budget of nothing: `0m`"),
        (("--gpu-hour-price", "0"), 2, "is not in the range x>0"),
        (("--budget", "1gpu-h"), 1, "a build for a CPU takes no GPU"),
        (("--budget", "$5"), 1, "a build for a CPU takes no GPU"),
        (
            ("--budget", "5m", "--target", "h200", "--compile-only"),
            1,
            "--budget is of tuning, and nothing is timed in this build",
        ),
    ],
)
def test_a_budget_that_says_nothing_is_refused_at_once(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    out = tmp_path / "b.tar.zst"
    device = () if "--target" in words else ("--device", "cpu")
    fixed = ("build", "--model", "Qwen3-4B", "--tokens", "16", "--out", str(out))
    work = ("--work", str(tmp_path / "work"))
    result = CliRunner().invoke(main, [*fixed, *work, *device, *words])
    assert result.exit_code == code
    assert said in result.stderr
    assert not out.exists()
