"""Long lists of Triton's candidates, with a cost that is known, and who tells it."""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from fakes import library, offered, task_of

from flytune.caches.columns import Status
from flytune.tuner.candidate import (
    ATEN,
    TRITON,
    BuildResult,
    Candidate,
    RunResult,
    TuneTask,
)
from flytune.tuner.decision import untimed_record
from flytune.tuner.overlap import Timed
from flytune.tuner.smart.cost_model import Observed
from flytune.tuner.smart.geometry import geometry_of
from flytune.tuner.smart.limits import Limits

H200 = Limits("nvidia", "sm_90", 132, 232448, 233472, 2048, 32)
LIBRARY_US = 40.0
BEST_US = 20.0
BEST = "triton_mm 64-64-128-4-4"
_AXES = ((16, 32, 64, 128), (32, 64, 128, 256), (32, 64, 128), (2, 3, 4), (2, 4, 8))


def triton(
    *sizes: int, template: str = "triton_mm", name: str | None = None
) -> Candidate:
    """Return a candidate of block_m, block_n, block_k, stages and warps."""
    m, n, k, stages, warps = sizes
    config = {
        **{"BLOCK_M": str(m), "BLOCK_N": str(n), "GROUP_M": "8"},
        **{"num_stages": str(stages), "num_warps": str(warps)},
        "tile_shape": f"'({m}, {k}, {n})'",
    }
    text = json.dumps(config, sort_keys=True)
    name = name or f"{template} {'-'.join(map(str, sizes))}"
    return Candidate(TRITON, template, text, name, b"")


def long_list(m: int = 64, n: int = 4096, k: int = 4096) -> TuneTask:
    """Return the task of some hundred candidates, the library's among them."""
    others = [triton(*sizes) for sizes in itertools.product(*_AXES)]
    return task_of(offered([library(), *others], m=m, n=n, k=k))


def cost_us(one: Candidate) -> float:
    """Return what a candidate takes: `BEST` the least."""
    found = geometry_of(one.backend, one.config)
    if found is None:
        return LIBRARY_US
    sizes = (found.block_m, found.block_n, found.block_k, found.stages, found.warps)
    best = (64, 64, 128, 4, 4)
    far = sum(abs(math.log2(a / b)) for a, b in zip(sizes, best, strict=True))
    return BEST_US * 1.1**far


def observed(task: TuneTask) -> list[Observed]:
    """Return the records of a list of which all was timed."""
    return [
        Observed(replace(untimed_record(task, one), median_us=cost_us(one)), H200)
        for one in task.offered.candidates
    ]


@dataclass
class Device:
    """Times candidates at what they cost, and remembers what it was asked."""

    failing: frozenset[str] = frozenset()
    failure: Status = Status.FAULT
    equal: bool = False
    """Whether all take the same."""
    asked: list[tuple[str, ...]] = field(default_factory=list)
    """The candidates of each race, in order."""

    def time(self, tasks: Sequence[TuneTask]) -> Iterator[Timed]:
        for task in tasks:
            candidates = task.offered.candidates
            self.asked.append(tuple(c.choice_hash for c in candidates))
            builds = tuple(BuildResult(c.choice_hash, Status.OK) for c in candidates)
            yield Timed(task, builds, tuple(map(self._result, candidates)))

    def compiled(self) -> set[str]:
        """Return what was ever asked for that is no library's."""
        return {name for names in self.asked for name in names} - {"library"}

    def _result(self, one: Candidate) -> RunResult:
        name = one.choice_hash
        if name in self.failing:
            return RunResult(name, self.failure, "it died")
        if self.equal:
            return RunResult(name, Status.OK, samples_us=(BEST_US,) * 9)
        samples = (cost_us(one),) * 9
        # As a race leaves it: surely slower ones race no further.
        slow = cost_us(one) > 1.3 * BEST_US and one.backend != ATEN
        return RunResult(name, Status.OK, samples_us=samples, beaten=slow)
