"""What a build may spend, and the meter that says when it has."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from flytune.shapes.errors import FlytuneError

HOUR_S = 3600.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": HOUR_S}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_TIME = re.compile(rf"{_NUMBER}(gpu-)?([smh])")
_COST = re.compile(rf"\${_NUMBER}")

Clock = Callable[[], float]
"""Returns seconds that only grow, as `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a build may take, from its start to its bundle."""

    text: str
    """As it was asked for."""
    kind: Literal["time", "gpu", "cost"]
    amount: float
    """Seconds, seconds of one GPU, or in the money of `--gpu-hour-price`."""

    def after(self, seconds: float) -> "Budget":
        """Return what is left where so much time has passed already."""
        if self.kind != "time":
            return self
        return replace(self, amount=max(0.0, self.amount - seconds))


def parse_budget(text: str) -> Budget:
    """Return the budget of "90s", "30m", "2h", "4gpu-h" or "$20".

    Raises:
        ValueError: it is of another form, or nothing.
    """
    if found := _COST.fullmatch(text):
        budget = Budget(text, "cost", float(found[1]))
    elif found := _TIME.fullmatch(text):
        number, gpu, unit = found.groups()
        amount = float(number) * _UNITS_S[unit]
        budget = Budget(text, "gpu" if gpu else "time", amount)
    else:
        raise ValueError(f"no budget: `{text}`; such are 90s, 30m, 2h, 4gpu-h and $20")
    if not budget.amount:
        raise ValueError(f"a budget of nothing: `{text}`")
    return budget


def check_budget(
    budget: Budget | None, price: float | None, *, accelerator: bool
) -> None:
    """Refuse a budget that nothing of the build is counted in.

    Args:
        price: Of a GPU hour.
        accelerator: Whether the build times on one.

    Raises:
        FlytuneError: it is.
    """
    if budget is None or budget.kind == "time":
        return
    if not accelerator:
        raise FlytuneError(
            f"a build for a CPU takes no GPU, and its budget is of one: {budget.text}",
            hint="give a time, such as --budget 30m",
        )
    if budget.kind == "cost" and price is None:
        raise FlytuneError(
            f"the budget is a cost, and no price is known: {budget.text}",
            hint="say what an hour of a GPU costs: --gpu-hour-price 4.50",
        )


class Meter:
    """Counts the seconds of a command, and those of the GPUs that it holds."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        """Begin to count.

        Args:
            clock: What tells the time.
        """
        self._clock = clock
        self._start = self._since = clock()
        self._gpu_s, self.devices = 0.0, 0

    def hold(self, devices: int) -> None:
        """Count so many GPUs from now on; the first that are told from the start."""
        now = self._clock()
        self._gpu_s += (self.devices or devices) * (now - self._since)
        self._since, self.devices = now, devices

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return self._clock() - self._start

    @property
    def gpu_seconds(self) -> float:
        """Of all GPUs together: idle ones are held, and paid, too."""
        return self._gpu_s + self.devices * (self._clock() - self._since)


@dataclass(slots=True)
class Allowance:
    """What of a budget a build may still take for tuning."""

    budget: Budget | None
    """None: there is no end."""
    price: float | None
    """Of a GPU hour."""
    meter: Meter
    reserve_s: float = 0.0
    """Seconds that what follows takes: without them there would be no bundle."""

    def left_s(self) -> float:
        """Return the seconds until the budget is spent; below 0 it is overdrawn."""
        budget, meter = self.budget, self.meter
        if budget is None:
            return float("inf")
        if budget.kind == "time":
            return budget.amount - meter.seconds
        gpu_s = budget.amount
        if budget.kind == "cost":
            assert self.price, "`check_budget` said so"
            gpu_s = HOUR_S * budget.amount / self.price
        return (gpu_s - meter.gpu_seconds) / max(1, meter.devices)

    def tuning_s(self) -> float:
        """Return the seconds that are left to tune, 0 at least."""
        return max(0.0, self.left_s() - self.reserve_s)

    def is_over(self) -> bool:
        """Whether nothing may be begun any more."""
        return self.left_s() <= self.reserve_s

    def part(self, share: float) -> "Allowance":
        """Return what one of several builds may take of the rest.

        Args:
            share: Of what is left to tune, from 0 to 1.
        """
        kept = 0.0 if self.budget is None else (1 - share) * self.tuning_s()
        return Allowance(self.budget, self.price, self.meter, self.reserve_s + kept)
