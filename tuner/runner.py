"""Run the built candidates of one task on a device, check them and time them."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flytune.caches.ledger import Kind, Ledger
from flytune.caches.records import Status
from flytune.tuner.accuracy import judge
from flytune.tuner.candidate import BuildResult, Candidate, RunResult, TuneTask
from flytune.tuner.kernels import Kernel, make_kernels
from flytune.tuner.operands import Operands, UnsupportedError, make_operands
from flytune.tuner.timing import TimingPlan, copies_needed, time_interleaved


class Runner(Protocol):
    """Runs tasks on one device.

    Results come in the order of the task's candidates, one each. A candidate that
    cannot run is a result with its status and reason, never an exception. Not to be
    shared between threads or processes.
    """

    def run(
        self, task: TuneTask, built: Sequence[BuildResult], plan: TimingPlan
    ) -> tuple[RunResult, ...]: ...


@dataclass(frozen=True, slots=True)
class Device:
    """What the runner must know of the device."""

    name: str
    cache_bytes: int
    """Of the last-level cache."""
    rotation_bytes: int
    """Memory that copies of one candidate's weight may take."""


class CpuRunner:
    """Times on this process's CPU, with the threads of serving.

    The process must have the policy's environment, and `TORCHINDUCTOR_CACHE_DIR` set
    to a directory of its own.
    """

    def __init__(self, device: Device) -> None:
        from flytune.caches.ledger_hooks import arm

        self._device = device
        self._ledger = Ledger()
        arm(self._ledger)

    def run(
        self, task: TuneTask, built: Sequence[BuildResult], plan: TimingPlan
    ) -> tuple[RunResult, ...]:
        """Check and time the candidates of `task` that were built."""
        outcomes: dict[str, RunResult] = {}
        kernels: dict[str, tuple[Kernel, ...]] = {}
        try:
            operands = make_operands(task.offered, activation(task), seed=1)
        except UnsupportedError as error:
            return _all(task, Status.UNSUPPORTED, str(error))
        copies = self._copies(operands)
        for candidate, build in zip(task.offered.candidates, built, strict=True):
            if build.status is not Status.OK:
                outcomes[candidate.choice_hash] = RunResult(
                    candidate.choice_hash, build.status, build.reason
                )
                continue
            place_files(build.files)
            checked = self._check(candidate, task, operands, copies)
            if isinstance(checked, RunResult):
                outcomes[candidate.choice_hash] = checked
            else:
                kernels[candidate.choice_hash], error_ = checked
                outcomes[candidate.choice_hash] = RunResult(
                    candidate.choice_hash, Status.OK, rel_error=error_
                )
        samples = time_interleaved(kernels, plan) if kernels else {}
        method = _method(operands, copies)
        return tuple(
            _with_samples(outcomes[c.choice_hash], samples, method)
            for c in task.offered.candidates
        )

    def _copies(self, operands: Operands) -> int:
        if not operands.is_weight:
            return 1
        size = operands.b.element_size() * operands.b.numel()
        device = self._device
        return copies_needed(size, device.cache_bytes, device.rotation_bytes)

    def _check(
        self, candidate: Candidate, task: TuneTask, operands: Operands, copies: int
    ) -> RunResult | tuple[tuple[Kernel, ...], float]:
        """Return the kernels and the relative error, or why there are none."""
        name = candidate.choice_hash
        compiled = len(_compiled(self._ledger))
        try:
            kernels = make_kernels(candidate, task.offered, operands, copies)
            first = kernels[0]().clone()
            second = kernels[-1]()
        except UnsupportedError as error:
            return RunResult(name, Status.UNSUPPORTED, str(error))
        except MemoryError as error:
            return RunResult(name, Status.OUT_OF_MEMORY, str(error) or "out of memory")
        except Exception as error:  # a candidate may raise anything: it becomes a row
            return RunResult(name, Status.FAULT, f"{type(error).__name__}: {error}")
        if len(_compiled(self._ledger)) > compiled:
            return RunResult(
                name, Status.FAULT, "it reached the runner without being built"
            )
        error_, fault = judge(first, second, operands.reference)
        if fault:
            return RunResult(name, Status.WRONG_RESULT, fault)
        return kernels, error_


def activation(task: TuneTask) -> str:
    """Return what follows the GEMM in a fused list: oneDNN's name, or "none"."""
    for candidate in task.offered.candidates:
        attr = json.loads(candidate.config).get("attr")
        if attr is not None and task.offered.op == "linear_unary":
            return str(attr).strip("'")
    return "none"


def place_files(files: Mapping[str, bytes]) -> None:
    """Write built files below this process's Inductor directory."""
    root = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    for name, content in files.items():
        path = root / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_bytes(content)
        part.replace(path)


def _compiled(ledger: Ledger) -> list[str]:
    return [e.what for e in ledger.events if e.kind is Kind.CPP_COMPILED]


def _all(task: TuneTask, status: Status, reason: str) -> tuple[RunResult, ...]:
    return tuple(
        RunResult(c.choice_hash, status, reason) for c in task.offered.candidates
    )


def _with_samples(
    result: RunResult, samples: Mapping[str, tuple[float, ...]], method: str
) -> RunResult:
    if result.status is not Status.OK:
        return result
    return RunResult(
        result.choice_hash,
        Status.OK,
        samples_us=samples[result.choice_hash],
        rel_error=result.rel_error,
        method=method,
    )


def _method(operands: Operands, copies: int) -> str:
    """Say what was warm and what was not, for the record."""
    if not operands.is_weight:
        return "interleaved rounds, operands warm, packing of B included"
    if copies == 1:
        return "interleaved rounds, weight read from memory"
    return f"interleaved rounds, {copies} weight copies in turn"
