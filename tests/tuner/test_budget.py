"""Budgets in seconds, GPU hours and money, against a clock that tests move."""

import pytest

from flytune.shapes.errors import FlytuneError
from flytune.tuner.budget import Allowance, Budget, Meter, check_budget, parse_budget


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("90s", "time", 90.0),
        ("30m", "time", 1800.0),
        ("1.5h", "time", 5400.0),
        ("4gpu-h", "gpu", 14400.0),
        ("30gpu-m", "gpu", 1800.0),
        ("$20", "cost", 20.0),
        ("$0.50", "cost", 0.5),
    ],
)
def test_a_budget_is_seconds_gpu_hours_or_money(
    text: str, kind: str, amount: float
) -> None:
    budget = parse_budget(text)
    assert (budget.text, budget.kind, budget.amount) == (text, kind, amount)


def test_what_has_passed_is_of_a_time_alone() -> None:
    budget = parse_budget("90s")
    assert budget.after(30.0) == Budget("90s", "time", 60.0)
    assert budget.after(100.0).amount == 0
    for text in ("4gpu-h", "$20"):
        assert parse_budget(text).after(30.0) == parse_budget(text)


@pytest.mark.parametrize(
    "text",
    ["", "30", "m", "-30m", "1e9h", "4gpu", "20$", "$", "30m ", "0m", "$0", "٣m"],
)
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="budget"):
        parse_budget(text)


@pytest.mark.parametrize(
    ("text", "price", "accelerator", "said"),
    [
        ("4gpu-h", None, False, "takes no GPU"),
        ("$20", 4.5, False, "takes no GPU"),
        ("$20", None, True, "no price is known"),
    ],
)
def test_a_budget_of_what_a_build_does_not_take_is_refused(
    text: str, price: float | None, accelerator: bool, said: str
) -> None:
    with pytest.raises(FlytuneError, match=said):
        check_budget(parse_budget(text), price, accelerator=accelerator)
    check_budget(parse_budget("30m"), None, accelerator=accelerator)
    check_budget(parse_budget("$20"), 4.5, accelerator=True)
    check_budget(None, None, accelerator=accelerator)


def test_gpus_are_counted_while_they_are_held() -> None:
    clock = Hand()
    meter = Meter(clock)
    clock.now += 10
    assert meter.gpu_seconds == 0
    # The first that are told were there from the start.
    meter.hold(2)
    clock.now += 5
    assert (meter.seconds, meter.gpu_seconds) == (15, 30)
    meter.hold(8)
    clock.now += 1
    assert meter.gpu_seconds == 38


def allowance(text: str, clock: Hand, price: float | None = None) -> Allowance:
    return Allowance(parse_budget(text), price, Meter(clock))


def test_tuning_ends_in_time_for_what_follows() -> None:
    clock = Hand()
    some = allowance("100s", clock)
    some.reserve_s = 30
    assert some.tuning_s() == 70
    clock.now += 69
    assert not some.is_over()
    clock.now += 1
    assert some.is_over()
    clock.now += 50
    assert (some.left_s(), some.tuning_s()) == (-20, 0)


@pytest.mark.parametrize(("text", "price"), [("1gpu-h", None), ("$4", 4.0)])
def test_more_gpus_spend_it_sooner(text: str, price: float | None) -> None:
    clock = Hand()
    some = allowance(text, clock, price)
    some.meter.hold(4)
    assert some.left_s() == 900
    clock.now += 300
    assert some.left_s() == 600
    some.meter.hold(8)
    assert some.left_s() == 300


def test_without_a_budget_there_is_no_end() -> None:
    clock = Hand()
    some = Allowance(None, None, Meter(clock), 1e9)
    clock.now += 1e9
    assert not some.is_over()
    assert not some.part(0.1).is_over()


def test_what_one_build_of_several_leaves_is_the_others() -> None:
    clock = Hand()
    whole = Allowance(Budget("100s", "time", 100.0), None, Meter(clock), 20.0)
    first = whole.part(0.25)
    assert first.tuning_s() == 20
    clock.now += 10
    assert first.tuning_s() == 10
    # The second of two gets all that is left.
    assert whole.part(1.0).tuning_s() == 70
