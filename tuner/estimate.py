"""What a build will take, stage by stage, from rates that were measured.

A rate is a device's own where earlier builds on it have left any in their journals, by
a factor to those that come with flytune.
"""

import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flytune.tuner.budget import HOUR_S
from flytune.tuner.rates import Rates

COMPILE, TIME, START = "compile", "time", "start"
"""Of tuning: what a candidate takes to compile, a list to time, and all else."""
STAGES = ("plan", "enumerate", "tune", "bake", "verify")
_WHOLE = 4.5
"""Times the layers one by one, that a model takes as one graph: `first_token`."""
_FROZEN = 2.0
"""Times an unfrozen one, that a frozen bake takes, which packs its weights."""
_TELLING_S = 5.0
"""Of listing a program: less says nothing of a host."""
_LAST = 5
"""Builds that a factor is the median of."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much each stage of a build has to do."""

    tokens: int
    """Token counts that each piece of the program is called with."""
    lists: int
    """To be timed."""
    compiled: int
    """Candidates to be compiled."""
    timed: int
    """Candidates to be timed."""
    offered: int = 0
    """Candidates to be listed."""
    call_s: float = 0.0
    """What one call of each of those takes, together."""
    slots: int = 1
    """Compilations at once."""
    devices: int = 0
    """GPUs; 0 where the CPU is timed, on the cores that compile."""
    enumerated: bool = False
    """Whether the lists are there already."""
    baked: bool = True
    whole: bool = False
    """Whether one graph holds the whole model."""
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Spent:
    """What one build took, as its journal says it."""

    key: str
    """What it has in common with builds that take about as long."""
    amounts: Amounts
    stages: Mapping[str, float]
    compile_s: float = 0.0
    """Of all cores, of what was compiled for it."""
    device_s: float = 0.0
    """Of all devices, that lists had them."""
    load: float = 1.0
    """Times that all the host's work then took longer than alone, as `load_now`."""


def tune_s(
    amounts: Amounts, start_s: float, compile_s: float, device_s: float
) -> float:
    """Return the seconds of building and timing.

    On a CPU one comes after the other. On accelerators the longer of the two hides the
    other, but for the first list's.

    Args:
        compile_s: Of all cores.
        device_s: Of all devices.
    """
    if not amounts.lists:
        return 0.0
    building = compile_s / max(1, amounts.slots)
    timing = device_s / max(1, amounts.devices)
    if not amounts.devices:
        return start_s + building + timing
    hidden = min(building, timing) / amounts.lists
    return start_s + max(building, timing) + hidden


@dataclass(frozen=True, slots=True)
class Estimator:
    """Rates, and by how much they are off on this host, as its builds tell."""

    rates: Rates
    factors: Mapping[str, float] = field(default_factory=dict)
    """By stage, and of `COMPILE` and `TIME`."""
    builds: int = 0
    """Earlier builds that those were learned from."""
    load: float = 1.0
    """Times that all takes longer than on a host that has nothing else to do."""

    @property
    def source(self) -> str:
        """What it goes by."""
        if not self.builds:
            return self.rates.source
        some = f"{self.builds} earlier build{'s' if self.builds > 1 else ''}"
        return f"{some} on this device"

    def parts(self, amounts: Amounts) -> dict[str, float]:
        """Return the seconds of each stage."""
        found = self._by_rates(amounts)
        return {name: self._factor(name) * seconds for name, seconds in found.items()}

    def _by_rates(self, amounts: Amounts) -> dict[str, float]:
        rates, tokens = self.rates, amounts.tokens
        load = self.load
        compile_s = load * self._factor(COMPILE) * rates.compile_s * amounts.compiled
        device_s = self._factor(TIME) * _device_s(rates, amounts)
        if not amounts.devices:
            device_s *= load
        start_s = load * self._factor(START) * rates.start_s
        factor = (_WHOLE if amounts.whole else 1) * (_FROZEN if amounts.frozen else 1)
        baked = load * factor if amounts.baked else 0.0
        offering_s = rates.offer_s * amounts.offered
        listing_s = load * (rates.enumerate.at(tokens) + offering_s)
        return {
            "plan": load * rates.plan_s,
            "enumerate": 0.0 if amounts.enumerated else listing_s,
            "tune": tune_s(amounts, start_s, compile_s, device_s),
            "bake": baked * rates.bake.at(tokens),
            "verify": baked * rates.verify.at(tokens),
        }

    def _factor(self, name: str) -> float:
        return self.factors.get(name, 1.0)


def load_now() -> float:
    """Return how many times longer this host's work takes than it would alone.

    That is as many as there are processes to run for each core, over the last minute.
    """
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def learned(
    rates: Rates, spent: Iterable[Spent], key: str, load: float = 1.0
) -> Estimator:
    """Return an estimator that has learned from builds, the newest first.

    Args:
        load: Of the host now, as `load_now`.
        key: Of the build that is estimated: builds of the same one tell more than the
            others, which are asked where there is none.
    """
    every = list(spent)
    same = [one for one in every if one.key == key]
    factors: dict[str, float] = {}
    for name in (COMPILE, TIME, START, *STAGES):
        for some in (same, every):
            known = [f for one in some if (f := _factor_of(rates, one, name))]
            if known:
                factors[name] = statistics.median(known[:_LAST])
                break
    return Estimator(rates, factors, len(every), load)


def _factor_of(rates: Rates, one: Spent, name: str) -> float | None:
    """Return how many times its rate something took; None where it tells nothing."""
    amounts, load = one.amounts, one.load
    if name == COMPILE:
        return _over(one.compile_s, load * rates.compile_s * amounts.compiled)
    if name == TIME:
        slower = 1.0 if amounts.devices else load
        return _over(one.device_s, slower * _device_s(rates, amounts))
    if name == START:
        known_s = tune_s(amounts, 0.0, one.compile_s, one.device_s)
        rest_s = one.stages.get("tune", 0.0) - known_s
        return _over(rest_s, load * rates.start_s) if amounts.lists else None
    if name == "tune":
        return None
    took = one.stages.get(name, 0.0)
    return _over(took, Estimator(rates, load=load).parts(amounts)[name])


def _device_s(rates: Rates, amounts: Amounts) -> float:
    """Return what rates say of all lists on the device."""
    fixed_s, each_s = rates.list
    calling_s = rates.calls * amounts.call_s
    return fixed_s * amounts.lists + each_s * amounts.timed + calling_s


def _over(took: float, expected: float) -> float | None:
    return took / expected if took > 0 and expected > 0 else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a build will take."""

    parts: Mapping[str, float]
    """Seconds by stage."""
    devices: int
    """GPUs that are held meanwhile."""
    price: float | None
    """Of a GPU hour."""
    source: str

    @property
    def seconds(self) -> float:
        """Of the whole build."""
        return sum(self.parts.values())

    @property
    def gpu_hours(self) -> float:
        """Of all GPUs together."""
        return self.seconds * self.devices / HOUR_S

    @property
    def cost(self) -> float | None:
        """In the money of the price; None where there is none, or no GPU."""
        if self.price is None or not self.devices:
            return None
        return self.gpu_hours * self.price

    @property
    def after_tuning_s(self) -> float:
        """Of what follows the tuning, without which there is no bundle."""
        return self.parts.get("bake", 0.0) + self.parts.get("verify", 0.0)

    def within(self, limit_s: float) -> "Estimate":
        """Return the estimate of a build that a budget ends: it tunes so much less."""
        rest_s = self.seconds - self.parts.get("tune", 0.0)
        return self.tuning(max(0.0, limit_s - rest_s))

    def tuning(self, most_s: float) -> "Estimate":
        """Return the estimate of a build that tunes for so many seconds at most."""
        tune = min(most_s, self.parts.get("tune", 0.0))
        parts = {**self.parts, "tune": tune}
        return Estimate(parts, self.devices, self.price, self.source)


def refined(
    parts: Mapping[str, float],
    before: Mapping[str, float],
    spent: Mapping[str, float],
) -> dict[str, float]:
    """Return what stages take, as far as is known when the lists are there.

    What follows compiles the program as listing it has: where that took longer than was
    expected the host is slower, or busier, and will be.

    Args:
        parts: Of what is to do, as its amounts say.
        before: As it was expected.
        spent: What stages have taken.
    """
    took, expected = (some.get("enumerate", 0.0) for some in (spent, before))
    known = expected >= _TELLING_S and took >= _TELLING_S
    pace = took / expected if known else 1.0
    return {
        **{name: spent.get(name, 0.0) for name in ("plan", "enumerate")},
        "tune": parts["tune"],
        **{name: pace * parts[name] for name in ("bake", "verify")},
    }


def together(estimates: Iterable[Estimate]) -> Estimate:
    """Return the estimate of builds that are done one after another."""
    some = list(estimates)
    parts = {name: sum(one.parts.get(name, 0.0) for one in some) for name in STAGES}
    return Estimate(parts, some[0].devices, some[0].price, some[0].source)
