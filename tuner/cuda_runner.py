"""Times on the one CUDA device that this process sees."""

import contextlib
import fcntl
import importlib
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from flytune.shapes.errors import FlytuneError
from flytune.tuner.builder import load_triton, source_path
from flytune.tuner.candidate import ATEN, TRITON, Candidate, RunResult, TuneTask
from flytune.tuner.cuda_timing import CANARY_MOVED, Canary, graph_samplers
from flytune.tuner.kernels import Kernel, in_order, returning
from flytune.tuner.operands import Operands, UnsupportedError
from flytune.tuner.runner import Device, DeviceLostError, LocalRunner
from flytune.tuner.subgraph import DECOMPOSE_K, load_call
from flytune.tuner.telemetry import Telemetry
from flytune.tuner.timing import Race, TimingPlan, calmest, time_interleaved

if TYPE_CHECKING:
    import torch

# Times that a batch is measured before a moving canary is only noted.
_BATCHES = 3
_LOCK_S = 30.0
# Replays of the canary that wake an idle device's clocks.
_WAKING = 25


class CudaRunner(LocalRunner):
    """Runs ATen's and Triton's kernels; compiles nothing.

    Raises:
        FlytuneError: the process does not see exactly one device, it is another than
            what is built for, or another process times on it.
    """

    def __init__(self, device: Device) -> None:
        import torch

        seen = torch.cuda.device_count()
        if seen != 1:
            raise FlytuneError(f"a runner must see one device, and sees {seen}")
        if (product := torch.cuda.get_device_name(0)) != device.name:
            raise FlytuneError(f"a device is no {device.name}: {product}")
        self.uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        self._lock = lock_device(self.uuid)
        super().__init__(device)
        self._stream = torch.cuda.Stream()
        self._telemetry = Telemetry(self.uuid)
        self._weights: tuple[torch.Tensor, ...] = ()
        self._out: torch.Tensor | None = None
        self._canary = Canary(self._stream)
        if not self._canary.is_right():
            raise FlytuneError(f"the device multiplies wrongly: {self.uuid}")
        _load_driver()

    def measure(self, names: Sequence[str], plan: TimingPlan) -> tuple[RunResult, ...]:
        """Time checked candidates against each other, in the order given.

        A batch that saw the canary move is measured again.

        Raises:
            KeyError: a name was not checked, or its check failed.
            DeviceLostError: a candidate has spoilt the device.
        """
        kernels = {name: self._kernels[name] for name in names}
        try:
            graphs = graph_samplers(kernels, plan, self._stream)
            race, moved = self._race(graphs.samplers, plan)
        except RuntimeError as error:
            self._after_fault(str(error))
            raise
        reading = self._telemetry.read()
        notes = [str(reading)] if str(reading) else []
        if disturbed := moved > CANARY_MOVED:
            notes.append(f"canary moved by {moved:.1%}")
        results = []
        for name in names:
            how = "events" if name in graphs.uncaptured else "CUDA graph"
            what = f"{how} of {graphs.launches[name]} launches"
            words = "; ".join([what, self._what_was_warm(), *notes])
            timed = self._timed(race, name, words)
            results.append(
                replace(
                    timed,
                    disturbed=disturbed,
                    clock_mhz=reading.clock_mhz,
                    device_uuid=self.uuid,
                )
            )
        return tuple(results)

    def _race(self, samplers: Any, plan: TimingPlan) -> tuple[Race, float]:
        """Return the samples, and the share by which the canary moved meanwhile."""
        for _ in range(_WAKING):
            self._canary.time_us()

        def run() -> tuple[Race, float]:
            before = self._canary.time_us()
            race = time_interleaved(samplers, plan)
            return race, abs(self._canary.time_us() / before - 1)

        return calmest(run, CANARY_MOVED, _BATCHES, plan)

    def _what_was_warm(self) -> str:
        copies = len(self._weights)
        if copies > 1:
            return f"{copies} weight copies in turn"
        assert self._operands is not None
        return "weight from memory" if self._operands.is_weight else "operands warm"

    def _prepare(self, task: TuneTask, operands: Operands) -> None:
        import torch

        copies = self._copies(operands, holders=1)
        clones = (
            operands.b.clone(memory_format=torch.preserve_format)
            for _ in range(copies - 1)
        )
        self._weights = (operands.b, *clones)
        # One for all candidates: a head's output times a long list fills the device.
        self._out = _output(task, operands)
        torch.cuda.synchronize()

    def begin(self, task: TuneTask) -> None:
        """Make the operands and the reference of a task; forget the one before."""
        self._weights, self._out = (), None
        super().begin(task)

    def _make_kernels(
        self, candidate: Candidate, task: TuneTask, operands: Operands
    ) -> tuple[Kernel, ...]:
        import torch

        make = _launches(candidate)
        kernels = []
        # A launch is bound to the stream that is current when it is made.
        with torch.cuda.stream(self._stream), _poisoned_memory():
            assert self._out is not None
            self._out.fill_(torch.nan)
            for weight in self._weights:
                inputs = in_order(task.offered, operands, weight)
                kernels.append(self._on_stream(make(inputs, self._out)))
            # Freed at once: a kernel that makes its own output is given NaN too.
            _output(task, operands)
        torch.cuda.synchronize()
        return tuple(kernels)

    def _on_stream(self, launch: Kernel) -> Kernel:
        import torch

        def kernel() -> "torch.Tensor":
            current = torch.cuda.current_stream()
            if current == self._stream:
                return launch()
            # What the caller did before, and does after, is in another stream.
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                out = launch()
            current.wait_stream(self._stream)
            return out

        return kernel

    def _after_fault(self, reason: str) -> None:
        """Probe the device; an illegal access spoils it for the whole process."""
        try:
            right = self._canary.is_right()
        except RuntimeError as error:
            raise DeviceLostError(reason) from error
        if not right:
            raise DeviceLostError(f"{reason}; the device multiplies wrongly since")


def _launches(
    candidate: Candidate,
) -> Callable[[list["torch.Tensor"], "torch.Tensor"], Kernel]:
    """Return what makes a launch of a candidate from its inputs and its output.

    Raises:
        UnsupportedError: the backend is not one that runs on this device.
    """
    if candidate.backend == DECOMPOSE_K:
        call = load_call(candidate.source)
        return lambda inputs, _: lambda: call([*inputs])[0]
    if candidate.backend not in (ATEN, TRITON):
        raise UnsupportedError(f"no runner for backend: {candidate.backend}")
    request = pickle.loads(candidate.request)
    if candidate.backend == TRITON:
        load_triton(candidate)
        request.module_path = str(source_path(request.module_cache_key))
    else:
        # Inductor finds a library's kernel by a name that its lowerings register.
        importlib.import_module("torch._inductor.lowering")

    def make(inputs: list["torch.Tensor"], out: "torch.Tensor") -> Kernel:
        launch: Kernel = request.make_run_fn(*inputs, out=out)
        # Without an out variant the library returns an output of its own.
        return returning(launch, out) if _writes(request) else launch

    return make


def _writes(request: Any) -> bool:
    return bool(getattr(request, "has_out_variant", True))


def _output(task: TuneTask, operands: Operands) -> "torch.Tensor":
    """Return an output as serving lays it out, NaN wherever a kernel writes nothing."""
    import torch

    spec = task.offered.output
    dtype = getattr(torch, spec.dtype)
    out = torch.empty_strided(
        spec.sizes, spec.strides, dtype=dtype, device=operands.a.device
    )
    return out.fill_(torch.nan)


@contextlib.contextmanager
def _poisoned_memory() -> Iterator[None]:
    """Fill what is allocated meanwhile, such as a workspace, with NaN or all ones."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _load_driver() -> None:
    """Make Triton ready to launch.

    It compiles a module in C for that where it finds none, and the first candidate
    would pass for one that was not built.
    """
    from triton.runtime import driver

    driver.active.get_current_target()


def lock_device(uuid: str) -> IO[str]:
    """Hold a device for timing until the file that is returned is closed.

    Waits a while: a process that was killed may still be dying.

    Raises:
        FlytuneError: another process of this host holds it.
    """
    path = Path(tempfile.gettempdir()) / f"flytune-{uuid}.lock"
    try:
        file = path.open("a")
    except PermissionError:
        # Another user's: reading is enough to lock it.
        file = path.open()
    end = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError as error:
            if time.monotonic() < end:
                time.sleep(0.2)
                continue
            file.close()
            raise FlytuneError(
                f"another flytune times on this device: {uuid}",
                hint="wait for it, or show this one another device",
            ) from error
