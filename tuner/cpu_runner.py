"""Times on this process's CPU, with the threads of serving."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from flytune.tuner.candidate import Candidate, RunResult, TuneTask
from flytune.tuner.kernels import Kernel, make_kernels
from flytune.tuner.operands import Operands
from flytune.tuner.others import Others
from flytune.tuner.runner import LocalRunner
from flytune.tuner.timing import (
    Race,
    TimingPlan,
    calmest,
    time_interleaved,
    wall_samplers,
)

# Cores that others may take during a race: an idle host's own work takes as much.
DISTURBED_CORES = 0.15
_RACES = 4
_CANARY_SIZE = 512
_CANARY_CALLS = 15


class CpuRunner(LocalRunner):
    """Runs ATen's and Inductor's C++ kernels."""

    def measure(self, names: Sequence[str], plan: TimingPlan) -> tuple[RunResult, ...]:
        """Time checked candidates against each other, in the order given.

        Raises:
            KeyError: a name was not checked, or its check failed.
        """
        assert self._operands is not None
        assert self._task is not None
        kernels = {name: self._kernels[name] for name in names}

        def run() -> tuple[tuple[Race, float], float]:
            others = Others()
            before = _canary_us()
            race = time_interleaved(wall_samplers(kernels, plan), plan)
            return (race, (before + _canary_us()) / 2), others.cores()

        (race, canary_us), taken = calmest(run, DISTURBED_CORES, _RACES, plan)
        method = _method(self._operands, self._own_copies(self._task, self._operands))
        if disturbed := taken > DISTURBED_CORES:
            method += f"; others took {taken:.1f} cores"
        return tuple(
            replace(
                self._timed(race, name, method),
                disturbed=disturbed,
                canary_us=canary_us,
            )
            for name in names
        )

    def _make_kernels(
        self, candidate: Candidate, task: TuneTask, operands: Operands
    ) -> tuple[Kernel, ...]:
        copies = self._own_copies(task, operands)
        return make_kernels(candidate, task.offered, operands, copies)

    def _prepare(self, task: TuneTask, operands: Operands) -> None:
        """Nothing is shared: each candidate packs the weight in its own way."""

    def _after_fault(self, reason: str) -> None:
        """A CPU is as well as before; what kills the process is seen by the driver."""

    def _own_copies(self, task: TuneTask, operands: Operands) -> int:
        return self._copies(operands, holders=len(task.offered.candidates))


def _canary_us() -> float:
    """Return the median time of a GEMM that is the same for every list."""
    import torch

    a = torch.ones(_CANARY_SIZE, _CANARY_SIZE)
    out = torch.empty_like(a)
    samples = []
    for _ in range(_CANARY_CALLS):
        start = time.perf_counter()
        torch.mm(a, a, out=out)
        samples.append(time.perf_counter() - start)
    return statistics.median(samples) * 1e6


def _method(operands: Operands, copies: int) -> str:
    """Say what was warm and what was not, for the record."""
    if not operands.is_weight:
        return "interleaved rounds, operands warm, packing of B included"
    if copies == 1:
        return "interleaved rounds, weight read from memory"
    return f"interleaved rounds, {copies} weight copies in turn"
