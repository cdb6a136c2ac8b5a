"""Run the built candidates of one task on a device, check them and time them."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flytune.caches.ledger import Kind, Ledger
from flytune.caches.records import Status
from flytune.caches.triton_cache import is_group, relocated_group
from flytune.tuner.accuracy import judge
from flytune.tuner.candidate import (
    BuildResult,
    Candidate,
    RunResult,
    TuneTask,
    failure,
)
from flytune.tuner.kernels import Kernel
from flytune.tuner.operands import Operands, UnsupportedError, make_operands
from flytune.tuner.timing import Race, TimingPlan, copies_needed, unsound

_COMPILED = frozenset({Kind.CPP_COMPILED, Kind.TRITON_COMPILED, Kind.FLYDSL_COMPILED})


class Runner(Protocol):
    """Runs the candidates of one task at a time on one device.

    `begin`, then `check` for each built candidate, then `measure`. A candidate that
    cannot run is a result with its status and reason, never an exception; one that
    kills the process has been told apart by the calls being one a candidate. Not to
    be shared between threads.
    """

    def begin(self, task: TuneTask) -> None:
        """Make the operands and the reference of a task; forget the one before."""

    def check(self, build: BuildResult) -> RunResult:
        """Load one candidate, launch it twice and judge its output."""

    def measure(self, names: Sequence[str], plan: TimingPlan) -> tuple[RunResult, ...]:
        """Time checked candidates against each other, in the order given."""

    def end(self) -> None:
        """Forget the task, and free what it took of the device's memory."""


class DeviceLostError(Exception):
    """The process can use its device no more: a candidate has spoilt it for good."""


@dataclass(frozen=True, slots=True)
class Device:
    """What the runner must know of the device."""

    name: str
    cache_bytes: int
    """Of the last-level cache."""
    rotation_bytes: int
    """Memory that all copies of a list's weight may take."""
    kind: str = "cpu"
    """torch's type: "cpu" or "cuda"."""
    vendor: str = ""
    """Of an accelerator: "nvidia" or "amd"."""


class LocalRunner(ABC):
    """What all runners share; times on a device of this very process.

    The process must have the policy's environment, and `TORCHINDUCTOR_CACHE_DIR` set
    to a directory of its own.
    """

    def __init__(self, device: Device) -> None:
        from flytune.caches.ledger_hooks import arm

        self._device = device
        self._ledger = Ledger()
        arm(self._ledger)
        self._task: TuneTask | None = None
        self._operands: Operands | None = None
        self._refusal = Status.UNSUPPORTED, "no task has begun"
        """What befalls every candidate of a task that has no operands."""
        self._kernels: dict[str, tuple[Kernel, ...]] = {}
        self._errors: dict[str, float] = {}

    def begin(self, task: TuneTask) -> None:
        """Make the operands and the reference of a task; forget the one before."""
        self.end()
        self._task = task
        try:
            self._operands = make_operands(task.offered, 1, self._device.kind)
            self._prepare(task, self._operands)
        except UnsupportedError as error:
            self._refusal = Status.UNSUPPORTED, str(error)
        except Exception as error:  # no operands: every candidate gets a row
            self._operands = None
            self._refusal = failure(error, Status.UNSUPPORTED)

    def check(self, build: BuildResult) -> RunResult:
        """Load one candidate, launch it twice and judge its output.

        Raises:
            DeviceLostError: the candidate has spoilt the device for this process.
        """
        name = build.choice_hash
        task, operands = self._task, self._operands
        if task is None or operands is None:
            return RunResult(name, *self._refusal)
        if build.status is not Status.OK:
            return RunResult(name, build.status, build.reason)
        place_files(build.files)
        compiled = self._compiled()
        try:
            candidate = next(
                c for c in task.offered.candidates if c.choice_hash == name
            )
            kernels = self._make_kernels(candidate, task, operands)
            written = kernels[0]()
            first = written.clone()
            written.fill_(float("nan"))
            second = kernels[-1]()
            worst, fault = judge(first, second, operands.reference, operands.tolerance)
        except UnsupportedError as error:
            return RunResult(name, Status.UNSUPPORTED, str(error))
        except Exception as error:  # a candidate may fail in any way: it becomes a row
            status, reason = failure(error, Status.FAULT)
            self._after_fault(reason)
            return RunResult(name, status, reason)
        if self._compiled() > compiled:
            return RunResult(name, Status.FAULT, "reached the runner without a build")
        if fault:
            return RunResult(name, Status.WRONG_RESULT, fault)
        self._kernels[name], self._errors[name] = kernels, worst
        return RunResult(name, Status.OK, rel_error=worst)

    def end(self) -> None:
        """Forget the task, and free what it took of the device's memory."""
        self._kernels.clear()
        self._errors.clear()
        self._task = self._operands = None

    @abstractmethod
    def measure(self, names: Sequence[str], plan: TimingPlan) -> tuple[RunResult, ...]:
        """Time checked candidates against each other, in the order given.

        Raises:
            KeyError: a name was not checked, or its check failed.
        """

    @abstractmethod
    def _make_kernels(
        self, candidate: Candidate, task: TuneTask, operands: Operands
    ) -> tuple[Kernel, ...]:
        """Return one launch for each copy of the weight."""

    @abstractmethod
    def _prepare(self, task: TuneTask, operands: Operands) -> None:
        """Make what all candidates of a task share, beside the operands."""

    @abstractmethod
    def _after_fault(self, reason: str) -> None:
        """Find out whether a candidate that failed has spoilt more than itself.

        Raises:
            DeviceLostError: it has.
        """

    def _timed(self, race: Race, name: str, method: str) -> RunResult:
        samples, error = race.samples_us[name], self._errors[name]
        if fault := unsound(samples):
            return RunResult(name, Status.UNSTABLE, fault, rel_error=error)
        return RunResult(
            name,
            Status.OK,
            samples_us=samples,
            rel_error=error,
            method=method,
            beaten=name in race.beaten,
        )

    def _copies(self, operands: Operands, holders: int) -> int:
        """Return how many copies of the weight to take turns with.

        Args:
            holders: How many hold copies of their own at the same time.
        """
        if not operands.is_weight:
            return 1
        size = operands.b.element_size() * operands.b.numel()
        share = self._device.rotation_bytes // holders
        return copies_needed(size, self._device.cache_bytes, share)

    def _compiled(self) -> int:
        return sum(e.kind in _COMPILED for e in self._ledger.events)


def place_files(files: Mapping[str, bytes]) -> None:
    """Write built files below this process's Inductor directory."""
    root = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    for name, content in files.items():
        path = root / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_group(path):
            siblings = [
                other for other in files if Path(other).parent == Path(name).parent
            ]
            content = relocated_group(path, [Path(other).name for other in siblings])
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_bytes(content)
        part.replace(path)
