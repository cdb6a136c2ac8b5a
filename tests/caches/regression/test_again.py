"""What is timed again, and what a comparison then comes to."""

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuned_bundles import (
    HARDWARE,
    Made,
    Tune,
    aten,
    bundle,
    shape,
    triton,
    tuned,
    usual,
)

from flytune.caches.regression.again import Thresholds
from flytune.caches.regression.check import Check, Outcome, Settings, check
from flytune.caches.regression.finding import Finding, Kind, Standing
from flytune.caches.regression.limits import Limit, Limits
from flytune.caches.regression.raced import LOOKS, Raced
from flytune.caches.regression.rows import rows
from flytune.caches.regression.sides import Pair, Side, Sides
from flytune.caches.regression.table import text
from flytune.shapes.gemm import GemmShape

TODAY = datetime.date(2026, 11, 30)
FIRST = shape(0, count=4)
SLOWER = Raced(tuple(math.log(1.06) + n / 1e4 for n in range(8)), 22.0)
EQUAL = Raced(tuple(n / 1e4 for n in range(4)), 22.0)
RESTLESS = Raced(tuple((-1) ** n * 0.4 for n in range(LOOKS[-1])), 22.0)
SAME = Raced(same=True)


class Again:
    """Stands for a device: what it says of each list, and which it was asked of."""

    device = "the device here"

    def __init__(self, *says: Raced, here: bool = True, unable: str = "") -> None:
        self._says, self._here, self.unable = says, here, unable
        self.asked: list[str] = []

    def is_here(self, sides: Sides) -> bool:
        return self._here

    def __call__(
        self, pairs: Sequence[Pair], thresholds: Thresholds, others: int
    ) -> Sequence[Raced]:
        self.asked = [pair.name for pair in pairs]
        if self.unable:
            return [Raced(why=self.unable) for _ in pairs]
        return [*self._says, *[SAME] * (len(pairs) - len(self._says))]


class Nowhere(Again):
    """As without the device: what is one kernel is known all the same."""

    def is_here(self, sides: Sides) -> bool:
        return False

    def __call__(
        self, pairs: Sequence[Pair], thresholds: Thresholds, others: int
    ) -> Sequence[Raced]:
        self.asked = [pair.name for pair in pairs]
        return [SAME] * len(pairs)


def many() -> dict[GemmShape, Sequence[Made]]:
    return {shape(n, count=4): usual(20.0 + 5 * n) for n in range(4)}


def compared(
    tmp_path: Path,
    again: Again,
    new: Mapping[GemmShape, Sequence[Made]] | None = None,
    **changes: Any,
) -> Check:
    tune = changes.pop("tune", Tune(2))
    was = tuned(tmp_path / "old", Tune(1), many())
    now = tuned(tmp_path / "new", tune, {**many(), **(new or {})}, **changes)
    return check(Side.open(now), Side.open(was), Settings(), TODAY, again)


def of(checked: Check, kind: Kind) -> list[Finding]:
    return [finding for finding in checked.findings if finding.kind is kind]


def apart() -> Tune:
    """On a device that differs from tune to tune."""
    return Tune(2, spread=0.02)


def other(time_us: float) -> dict[GemmShape, Sequence[Made]]:
    """The first list with another winner."""
    return {FIRST: (triton(time_us, 32), aten(1.5 * time_us))}


def test_records_that_decide_leave_nothing_to_time(tmp_path: Path) -> None:
    again = Again()
    checked = compared(tmp_path, again)
    assert (checked.outcome, again.asked) == (Outcome.FINE, [])
    assert "the records leave nothing open: nothing was timed again" in text(checked)


def test_only_what_got_slower_is_timed_and_the_race_has_the_last_word(
    tmp_path: Path,
) -> None:
    again = Again(EQUAL)
    checked = compared(tmp_path, again, other(22.0))
    assert len(again.asked) == 1
    assert again.asked[0].startswith(str(FIRST))
    assert checked.outcome is Outcome.FINE
    assert of(checked, Kind.SLOWER) == of(checked, Kind.RETIME) == []
    assert "1 list timed again, both winners in turn, in 4 processes each" in text(
        checked
    )


def test_another_kernel_that_may_be_slower_is_timed_though_it_does_not_look_so(
    tmp_path: Path,
) -> None:
    """By 2.5 %, where 3 % are allowed and builds differ by 1 %."""
    again = Again(SLOWER)
    checked = compared(tmp_path, again, other(20.5))
    assert again.asked == [of(checked, Kind.SLOWER)[0].subject]
    assert checked.outcome is Outcome.REGRESSION


def test_another_kernel_that_is_surely_no_slower_is_not_timed(tmp_path: Path) -> None:
    again = Again(SLOWER)
    checked = compared(tmp_path, again, other(19.0))
    assert (checked.outcome, again.asked) == (Outcome.FINE, [])


def test_a_difference_below_the_floor_is_not_open(tmp_path: Path) -> None:
    """5 % of 2 us, which is fine by the records."""
    first, *others = usual(2.0)
    was = tuned(tmp_path / "old", Tune(1), {**many(), FIRST: (first, *others)})
    slow = (first.slower(0.05), *(one.slower(0.05) for one in others))
    now = tuned(tmp_path / "new", Tune(2), {**many(), FIRST: slow})
    again = Again(RESTLESS)
    checked = check(Side.open(now), Side.open(was), Settings(), TODAY, again)
    assert (checked.outcome, again.asked) == (Outcome.FINE, [])


def test_the_lists_of_a_pass_that_may_be_slower_are_timed_again(tmp_path: Path) -> None:
    """None is over its own limit, and the sum is over that of a pass."""
    tight = Limits(limits=(Limit("forward pass*", 0.001, None),))
    was = tuned(tmp_path / "old", Tune(1), many())
    slow = {g: [k.slower(0.01) for k in some] for g, some in many().items()}
    now = tuned(tmp_path / "new", Tune(2), slow)
    sides = Side.open(now), Side.open(was)
    before = check(*sides, Settings(limits=tight), TODAY)
    (unsure,) = of(before, Kind.UNSURE)
    assert unsure.hint == "--retime decides it"
    again = Again(*[Raced(tuple(n / 1e6 for n in range(4)), 22.0)] * len(many()))
    checked = check(*sides, Settings(limits=tight), TODAY, again)
    assert len(again.asked) == len(many())
    assert of(checked, Kind.UNSURE) == []
    assert checked.outcome is Outcome.FINE
    # What cannot be timed stays as it was: fine by itself.
    lost = Again(*[Raced(why="the old winner is no candidate here")] * len(many()))
    checked = check(*sides, Settings(limits=tight), TODAY, lost)
    assert checked.outcome is Outcome.FINE
    (unsure,) = of(checked, Kind.UNSURE)
    assert unsure.hint == ""


def test_what_is_slower_in_the_race_too_is_a_regression_with_its_numbers(
    tmp_path: Path,
) -> None:
    checked = compared(tmp_path, Again(SLOWER), other(22.0))
    assert checked.outcome is Outcome.REGRESSION
    (finding,) = of(checked, Kind.SLOWER)
    assert finding.values["old_us"] == 22.0
    assert 1.055 < finding.values["ratio"] < 1.065
    assert "other config" in finding.text
    listed = [row for row in rows(checked) if row["row"] == "list"]
    assert sorted(str(row["processes"]) for row in listed) == ["8", *["None"] * 3]
    json.dumps(list(rows(checked)), allow_nan=False)


def test_what_cannot_be_decided_is_named_with_why(tmp_path: Path) -> None:
    restless = compared(tmp_path / "a", Again(RESTLESS), other(25.0))
    assert restless.outcome is Outcome.UNDECIDED
    (finding,) = of(restless, Kind.RETIME)
    assert f"{LOOKS[-1]} processes do not tell" in finding.text
    assert str(FIRST) in finding.subject
    # Slower by little, of which the records are not sure.
    lost = Raced(why="the old winner is no candidate here")
    unsure = compared(tmp_path / "b", Again(lost), other(21.0), tune=apart())
    assert unsure.outcome is Outcome.UNDECIDED
    assert of(unsure, Kind.RETIME)[0].text == "the old winner is no candidate here"


def test_a_regression_on_record_stands_where_it_cannot_be_timed(
    tmp_path: Path,
) -> None:
    lost = Raced(why="the old winner is no candidate here")
    checked = compared(tmp_path, Again(lost), other(30.0))
    assert checked.outcome is Outcome.REGRESSION
    assert of(checked, Kind.RETIME) == []


def test_another_canary_leaves_all_lists_open(tmp_path: Path) -> None:
    again = Again(EQUAL)
    warm = Tune(2, canary_us=104.0)
    checked = compared(tmp_path, again, other(20.0), tune=warm)
    assert len(again.asked) == len(many())
    assert checked.outcome is Outcome.FINE
    (finding,) = of(checked, Kind.OTHER_DEVICE)
    assert finding.standing is Standing.NOTED
    assert "decided for the device here: the device here" in finding.text
    # The passes are sums of times of one device.
    assert checked.times.passes
    assert checked.times.tests == 1 + len(checked.times.passes)


def test_other_hardware_is_said_and_decided_for_the_device_here(
    tmp_path: Path,
) -> None:
    hardware = {"hardware": {**HARDWARE, "product": "NVIDIA H100"}}
    target = {
        **hardware,
        "software": Side.open(_plain(tmp_path)).manifest.target["software"],
    }
    again = Again(SLOWER, here=False)
    checked = compared(tmp_path, again, other(20.0), target=target)
    assert checked.outcome is Outcome.REGRESSION
    assert not checked.times.passes
    assert [one.name for one in checked.times.lists] == again.asked[:1]


def test_bundles_of_other_hardware_than_the_device_here_are_raced_all(
    tmp_path: Path,
) -> None:
    again = Again(EQUAL, here=False)
    checked = compared(tmp_path, again, other(20.0))
    assert len(again.asked) == len(many())
    assert checked.outcome is Outcome.FINE
    assert (
        "the bundles are for other hardware" in of(checked, Kind.OTHER_DEVICE)[0].text
    )


def test_winners_that_no_record_times_are_timed(tmp_path: Path) -> None:
    again = Again(SLOWER)
    old = [Tune(1).list_of(gemm, some) for gemm, some in many().items()]
    new = [Tune(2).list_of(gemm, some) for gemm, some in many().items()]
    # As times that were recorded elsewhere.
    old[0], new[0] = (
        [replace(r, source="a log") for r in some[:1]]
        for some in (
            old[0],
            Tune(2).list_of(FIRST, other(20.0)[FIRST]),
        )
    )
    was, now = (
        Side.open(bundle(tmp_path / name, [r for some in lists for r in some]))
        for name, lists in (("old", old), ("new", new))
    )
    checked = check(now, was, Settings(), TODAY, again)
    assert again.asked == [str(FIRST) + f" at {FIRST.module}"]
    assert checked.outcome is Outcome.REGRESSION


def test_one_kernel_is_no_slower_than_itself_with_or_without_a_device(
    tmp_path: Path,
) -> None:
    slow = {FIRST: tuple(kernel.slower(0.1) for kernel in usual(20.0)[:1])}
    for number, again in enumerate(
        (Again(SAME), Nowhere(unable="no accelerator here"))
    ):
        checked = compared(tmp_path / str(number), again, slow)
        assert len(again.asked) == 1
        assert of(checked, Kind.SLOWER) == []
        assert checked.outcome is Outcome.FINE


def test_without_a_device_what_is_open_stays_so_and_the_rest_is_decided(
    tmp_path: Path,
) -> None:
    again = Again(here=False, unable="no accelerator here to time on")
    fine = compared(tmp_path / "a", again)
    assert fine.outcome is Outcome.FINE
    unsure = compared(tmp_path / "b", again, other(21.0), tune=apart())
    assert unsure.outcome is Outcome.UNDECIDED
    assert of(unsure, Kind.RETIME)[0].text == "no accelerator here to time on"
    assert len(again.asked) < len(many())
    said = text(unsure)
    assert "times     nothing could be timed again: no accelerator here to time on" in (
        said
    )
    assert again.device not in said
    assert "--retime" not in said
    assert said.splitlines()[-1] == (
        "check     UNDECIDED: 1 that cannot be told: no accelerator here to time on"
    )
    assert next(rows(unsure))["retimed"]["device"] is None


def _plain(tmp_path: Path) -> Path:
    return tuned(tmp_path / "plain", Tune(3), many())
