"""What the stages of a build were measured to take, where no build here has told."""

from dataclasses import dataclass
from typing import NamedTuple


class Line(NamedTuple):
    """Seconds that grow with a number."""

    fixed_s: float
    each_s: float

    def at(self, number: int) -> float:
        """Return the seconds of so many."""
        return self.fixed_s + self.each_s * number


@dataclass(frozen=True, slots=True)
class Rates:
    """What the stages of a build take on one kind of device."""

    source: str
    """Where that was measured."""
    plan_s: float
    enumerate: Line
    """By token counts, as are the others."""
    bake: Line
    verify: Line
    start_s: float
    """Until the first list is timed, beside compiling it."""
    compile_s: float
    """Of one core, for one candidate."""
    list: Line
    """Of the device, to check and time one list, by its candidates."""
    offer_s: float = 0.0
    """To list one candidate, beside the token counts."""
    calls: int = 0
    """Of each candidate, that take their own time besides: on accelerators a sample is
    of so many launches that it takes the same of all."""


H200 = Rates(
    "what an H200 took (ci/bench/results/throughput, smart/h200.parquet)",
    plan_s=8.0,
    enumerate=Line(10.0, 4.0),
    bake=Line(20.0, 75.0),
    verify=Line(12.0, 7.6),
    start_s=7.0,
    compile_s=0.37,
    list=Line(0.7, 0.02),
    offer_s=0.0125,
)
CPU = Rates(
    "what 2 cores of an EPYC took (ci/bench/results/build_cost)",
    plan_s=3.0,
    enumerate=Line(6.0, 6.0),
    bake=Line(15.0, 22.0),
    verify=Line(6.0, 4.0),
    start_s=7.0,
    compile_s=6.0,
    list=Line(0.3, 0.0),
    calls=40,
)
