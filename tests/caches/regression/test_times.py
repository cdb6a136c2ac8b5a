"""What got slower, how sure that is, and why."""

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuned_bundles import (
    HARDWARE,
    POLICY,
    SOFTWARE,
    Made,
    Tune,
    aten,
    bundle,
    shape,
    three_lists,
    triton,
    tuned,
    usual,
)

from flytune.caches.records import Status
from flytune.caches.regression.check import Check, Outcome, Settings, check
from flytune.caches.regression.finding import Finding, Kind, Standing
from flytune.caches.regression.limits import Threshold
from flytune.caches.regression.sides import Side
from flytune.caches.regression.table import statistics, time_rows, verdict
from flytune.shapes.gemm import GemmShape

TODAY = datetime.date(2026, 11, 30)
FIRST = shape(0, count=4)
Lists = Mapping[GemmShape, Sequence[Made]]


def many(count: int = 8) -> dict[GemmShape, tuple[Made, ...]]:
    return {shape(n, count=4): usual(20.0 + 5 * n) for n in range(count)}


def compared(
    tmp_path: Path, new: Lists, old: Lists | None = None, **changes: Any
) -> Check:
    settings = changes.pop("settings", Settings())
    tune = changes.pop("tune", Tune(2))
    was = tuned(tmp_path / "old", Tune(1), many() if old is None else old)
    now = tuned(tmp_path / "new", tune, new, **changes)
    return check(Side.open(now), Side.open(was), settings, TODAY)


def slower(checked: Check) -> list[Finding]:
    return [f for f in checked.findings if f.kind is Kind.SLOWER]


def changed(kernels: Sequence[Made], **more: Any) -> dict[GemmShape, Sequence[Made]]:
    """Many lists, of which the first has these kernels."""
    return {**many(), FIRST: kernels, **more}


def test_the_same_kernel_may_get_slower(tmp_path: Path) -> None:
    first, *others = usual(20.0)
    checked = compared(tmp_path, changed([first.slower(0.1), *others]))
    (finding,) = slower(checked)
    assert finding.subject == "mm (16, 1024, 4096) at model.layers.*.linear_0"
    assert finding.text.endswith(
        'p <0.0001; same kernel slower: triton triton_mm {"BLOCK_M":64}, the very same '
        "code"
    )
    assert finding.values["ratio"] == pytest.approx(1.1, abs=0.02)
    assert checked.outcome is Outcome.REGRESSION


def test_a_kernel_that_was_compiled_anew_is_the_same_choice(tmp_path: Path) -> None:
    first, *others = usual(20.0)
    new = changed([replace(first.slower(0.1), digest="other"), *others])
    target = {"hardware": HARDWARE, "software": {**SOFTWARE, "triton": "3.9.1"}}
    (finding,) = slower(compared(tmp_path, new, target=target))
    assert finding.text.endswith('triton triton_mm {"BLOCK_M":64}, compiled anew')


def test_another_backend_is_named_with_the_fate_of_the_first(tmp_path: Path) -> None:
    first, *others = usual(20.0)
    (finding,) = slower(compared(tmp_path / "1", changed(others)))
    assert finding.text.endswith(
        'other backend: triton triton_mm {"BLOCK_M":64} was taken, aten mm is; the '
        "first is no candidate any more"
    )
    failed = replace(first, status=Status.OVER_RESOURCES)
    (finding,) = slower(compared(tmp_path / "2", changed([failed, *others])))
    assert finding.text.endswith("the first failed here, over_resources: no luck")
    (finding,) = slower(compared(tmp_path / "3", changed([first.slower(0.5), *others])))
    assert re.search(r"; the first takes 30\.\d us here, \+(49|50)", finding.text)


def test_another_config_is_named(tmp_path: Path) -> None:
    old = {**many(), FIRST: (triton(20.0), triton(23.0, 128), aten(30.0))}
    new = {**many(), FIRST: (triton(23.0, 128), aten(30.0))}
    (finding,) = slower(compared(tmp_path, new, old))
    assert 'other config: triton triton_mm {"BLOCK_M":64} was taken' in finding.text


def test_what_is_faster_is_noted(tmp_path: Path) -> None:
    first, *others = usual(20.0)
    checked = compared(tmp_path, changed([first.slower(-0.2), *others]))
    (finding,) = checked.findings
    assert (finding.kind, finding.standing) == (Kind.FASTER, Standing.NOTED)
    # The p-value is that of so large a gain, not the one of being slower, which is 1.
    change = r"[12]\d\.\d -> 1\d\.\d us, -(19|2\d)\.\d%"
    assert re.fullmatch(f"{change}, p <0.0001", finding.text)
    _, whole, *lists = time_rows(checked)
    shown = {row[0]: row[5] for row in lists}
    assert shown.pop(finding.subject) == "<0.0001"
    # Of what is hardly faster, and of a forward pass, nobody asks how surely it is.
    ratios = {one.name: one.ratio for one in checked.times.lists}
    assert any(ratios[name] < 1 for name in shown)
    assert all((shown[name] == "") is (ratios[name] < 1) for name in shown)
    assert (whole[5] == "") is (checked.times.passes[0].ratio < 1)


def test_what_is_below_the_floor_or_not_sure_is_not_faster(tmp_path: Path) -> None:
    first, *others = usual(2.0)
    old = {**many(), FIRST: (first, *others)}
    small = {**old, FIRST: (first.slower(-0.06), *others)}
    checked = compared(tmp_path, small, old)
    assert checked.times.lists[0].ratio == pytest.approx(0.94, abs=0.02)
    assert checked.findings == ()


def test_a_gain_as_large_as_the_spread_is_none(tmp_path: Path) -> None:
    first, *others = usual(20.0)
    new = changed([first.slower(-0.06), *others])
    checked = compared(tmp_path, new, tune=Tune(5, spread=0.05))
    assert [f for f in checked.findings if f.kind is Kind.FASTER] == []
    assert any(one.under for one in checked.times.lists)


def test_builds_that_differ_by_more_than_is_allowed_are_said(tmp_path: Path) -> None:
    checked = compared(tmp_path, many(), tune=Tune(3, spread=0.05))
    (note,) = (f for f in checked.findings if f.kind is Kind.NOISE)
    assert re.match(r"one kernel differs by \d+\.\d% from build to build", note.text)
    assert note.text.endswith("build both again where nothing else runs, or --retime")
    unsure = [f for f in checked.findings if f.kind is Kind.UNSURE]
    assert unsure
    assert verdict(checked) == f"check     fine; {len(unsure)} unsure"
    quiet = compared(tmp_path / "quiet", many())
    assert [f for f in quiet.findings if f.kind is Kind.NOISE] == []


def test_equal_rounds_are_named_for_what_they_are(tmp_path: Path) -> None:
    was = tuned(tmp_path / "old", Tune(1), many())
    again = tuned(tmp_path / "new", Tune(1), many(), created="2026-02-03T00:00:00Z")
    checked = check(Side.open(again), Side.open(was), Settings(), TODAY)
    (line,) = statistics(checked)
    assert line == "none are tested: 8 lists with the baseline's very rounds"
    checked = check(Side.open(was), Side.open(was), Settings(), TODAY)
    (line,) = statistics(checked)
    assert line == "none are tested: this is the very bundle that it is compared with"


def test_thresholds_hold_back_what_is_surely_slower(tmp_path: Path) -> None:
    first, *others = usual(20.0)
    new = changed([first.slower(0.1), *others])
    for number, threshold in enumerate([Threshold(0.2, 0.0), Threshold(0.03, 5.0)]):
        settings = Settings(threshold=threshold)
        checked = compared(tmp_path / str(number), new, settings=settings)
        assert slower(checked) == []


def test_a_difference_as_large_as_the_spread_is_unsure(tmp_path: Path) -> None:
    """One list of eight is 6 % slower, where tunes differ by as much."""
    noisy = Tune(3, spread=0.05)
    old = many()
    new = {gemm: some for gemm, some in old.items()}
    first, *others = usual(20.0)
    new[FIRST] = [first.slower(0.06), *others]
    checked = compared(tmp_path, new, old, tune=noisy)
    assert slower(checked) == []
    assert checked.outcome is Outcome.FINE
    assert checked.times.spread is not None
    assert checked.times.spread.deviation > 0.02
    unsure = {f.subject for f in checked.findings if f.kind is Kind.UNSURE}
    over = {one.name for one in checked.times.lists if one.over}
    assert unsure == over | {one.name for one in checked.times.passes if one.over}


def test_what_a_whole_pass_loses_is_found(tmp_path: Path) -> None:
    """Every list is 4 % slower, in a bundle of which none but the sum may be sure."""
    new = {g: [k.slower(0.04) for k in some] for g, some in many(16).items()}
    checked = compared(tmp_path, new, many(16))
    (finding,) = (f for f in checked.findings if f.kind is Kind.SLOWER_PASS)
    assert finding.subject == "forward pass at 16 tokens"
    assert finding.values["ratio"] == pytest.approx(1.04, abs=0.01)


def test_a_pass_is_of_its_token_count_and_weighted(tmp_path: Path) -> None:
    checked = compared(tmp_path, three_lists(), three_lists())
    passes = {one.name: one for one in checked.times.passes}
    assert list(passes) == [
        "forward pass at 1 token",
        "forward pass at 16 tokens",
        "forward pass",
    ]
    assert passes["forward pass at 16 tokens"].old_us == pytest.approx(240, rel=0.02)
    assert passes["forward pass"].old_us == pytest.approx(300, rel=0.02)


def test_what_the_canary_lost_is_not_held_against_kernels(tmp_path: Path) -> None:
    """A device that is 0.9 % slower makes everything so; 3.4 % is no more than 2.5."""
    new = {g: [k.slower(0.034) for k in some] for g, some in many(16).items()}
    steady = compared(tmp_path / "1", new, many(16)).times
    moved = compared(tmp_path / "2", new, many(16), tune=Tune(2, canary_us=100.9)).times
    before, after = (max(one.p_value for one in t.passes) for t in (steady, moved))
    assert before < after


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"target": {"hardware": {**HARDWARE, "product": "H100"}, "software": {}}},
            "hardware.product: was `NVIDIA H200`, is `H100`",
        ),
        ({"timed_on": "H200 NVL"}, "timed on: was `NVIDIA H200`, is `H200 NVL`"),
        (
            {"tune": Tune(2, canary_us=98.5)},
            "the canary, one and the same GEMM, took 100.0 us and takes 98.5 us, "
            "-1.5%: more than 1% apart, the device was not the same",
        ),
        ({"tune": Tune(2, canary_us=0.0)}, "no canary is on record: tuned.tar.zst"),
    ],
)
def test_times_of_another_device_decide_nothing(
    tmp_path: Path, changes: Mapping[str, Any], words: str
) -> None:
    new = {gemm: [k.slower(0.5) for k in some] for gemm, some in many().items()}
    checked = compared(tmp_path, new, **changes)
    (finding,) = (f for f in checked.findings if f.kind is Kind.OTHER_DEVICE)
    assert finding.text == words
    assert finding.hint.startswith("--retime ")
    # Each part is named once.
    assert not [f for f in checked.findings if "hardware." in str(f.values.get("part"))]
    assert checked.outcome is Outcome.UNDECIDED
    assert checked.times.lists == ()


def test_memory_is_in_no_time(tmp_path: Path) -> None:
    hardware = {**HARDWARE, "memory_bytes": 2}
    target = {"hardware": hardware, "software": SOFTWARE}
    checked = compared(tmp_path, many(), target=target)
    assert checked.outcome is Outcome.FINE


def test_a_failure_outweighs_what_cannot_be_decided(tmp_path: Path) -> None:
    checked = compared(tmp_path, many(), tune=Tune(2, canary_us=90.0), verify=None)
    assert checked.outcome is Outcome.REGRESSION


def test_a_list_of_one_is_judged_by_the_race_that_it_was_in(tmp_path: Path) -> None:
    """A lone candidate is not timed; the baseline has timed it against the winner."""
    was = tuned(tmp_path / "old", Tune(1), many())
    records = [r for one in Side.open(was).lists for r in one.records]
    first = records[0].module
    left = [r for r in records if r.module != first or r.backend == "aten"]
    untimed: dict[str, Any] = {"median_us": None, "samples_us": (), "source": None}
    lone = [
        replace(r, winner=True, reason="only candidate", **untimed)
        if r.module == first
        else r
        for r in left
    ]
    now = bundle(tmp_path / "new", lone)
    checked = check(Side.open(now), Side.open(was), Settings(), TODAY)
    (finding,) = slower(checked)
    assert finding.values["ratio"] == pytest.approx(1.2, abs=0.03)
    assert finding.text.endswith("the first is no candidate any more")
    assert checked.carried == 7


def test_a_list_that_has_no_time_any_more_is_undecided(tmp_path: Path) -> None:
    unknown = aten(1.0, config={"other": 1})
    was = tuned(tmp_path / "old", Tune(1), many())
    records = Tune(2).list_of(FIRST, [unknown])
    lone = replace(records[0], median_us=None, samples_us=(), source=None)
    now = bundle(tmp_path / "new", [lone])
    checked = check(Side.open(now), Side.open(was), Settings(), TODAY)
    (finding,) = (f for f in checked.findings if f.kind is Kind.UNTIMED)
    assert finding.standing is Standing.UNDECIDED
    assert finding.text.endswith('; aten mm {"other":1} is taken untimed')


def test_rounds_that_were_taken_over_are_not_tested(tmp_path: Path) -> None:
    was = tuned(tmp_path / "old", Tune(1), many())
    records = [r for one in Side.open(was).lists for r in one.records]
    now = bundle(tmp_path / "new", records)
    checked = check(Side.open(now), Side.open(was), Settings(), TODAY)
    assert (checked.carried, checked.times.tests) == (8, 0)
    assert checked.outcome is Outcome.FINE


def test_times_of_others_are_not_tested(tmp_path: Path) -> None:
    records = [
        replace(r, source="a table", samples_us=(r.median_us or 0.0,))
        for gemm, some in many().items()
        for r in Tune(1).list_of(gemm, some)
    ]
    now = bundle(tmp_path / "new", records)
    checked = check(Side.open(now), Side.open(now), Settings(), TODAY)
    assert (checked.outcome, checked.times.tests) == (Outcome.FINE, 0)


def test_the_policys_sizes_are_those_of_passes(tmp_path: Path) -> None:
    policy = {**POLICY, "tokens": [1]}
    checked = compared(tmp_path, three_lists(), three_lists(), policy=policy)
    names = [one.name for one in checked.times.passes]
    assert names == ["forward pass at 1 token", "forward pass"]
