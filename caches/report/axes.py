"""Axes of charts: where a value lies, and where its round numbers are."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Tick(NamedTuple):
    """A round value of an axis."""

    at: float
    """Pixels."""
    text: str


@dataclass(frozen=True, slots=True)
class LinearAxis:
    """An axis on which equal steps are equal differences."""

    low: float
    high: float
    start: float
    """Pixels of `low`; more than `end` where the axis goes up."""
    end: float

    def at(self, value: float) -> float:
        """Return the pixels of a value."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, most: int = 6) -> list[Tick]:
        """Return round values within the axis, about `most` of them."""
        step = _round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        values = [number * step for number in range(first, last + 1)]
        return [Tick(self.at(value), f"{value:,.10g}") for value in values]


@dataclass(frozen=True, slots=True)
class LogAxis:
    """An axis on which equal steps are equal ratios; its values are positive."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixels of a value."""
        share = math.log(value / self.low) / (math.log(self.high / self.low) or 1.0)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, most: int = 8) -> list[Tick]:
        """Return powers of ten within the axis, and more where there is room."""
        for digits in ((1, 2, 5), (1, 3), (1,)):
            values = list(self._values(digits))
            if len(values) <= most:
                break
        return [Tick(self.at(value), f"{value:,.10g}") for value in values]

    def _values(self, digits: tuple[int, ...]) -> Iterator[float]:
        first = math.floor(math.log10(self.low))
        for power in range(first, math.ceil(math.log10(self.high)) + 1):
            for digit in digits:
                value = digit * 10.0**power
                if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9):
                    yield value


def _round_step(step: float) -> float:
    """Return the next larger of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next((n * power for n in (1, 2, 5) if n * power >= step), 10 * power)
