"""Times on the one accelerator that this process sees, NVIDIA's or AMD's.

torch calls both "cuda"; the rest of what tells them apart is in `vendors`.
"""

import contextlib
import fcntl
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from flytune.caches.amd_device import pci_id, product_of
from flytune.shapes.errors import FlytuneError
from flytune.tuner.accelerator_kernels import load_driver, make_launch
from flytune.tuner.accelerator_timing import CANARY_MOVED, Canary, graph_samplers
from flytune.tuner.candidate import Candidate, RunResult, TuneTask
from flytune.tuner.kernels import Kernel, in_order
from flytune.tuner.operands import Operands
from flytune.tuner.runner import Device, DeviceLostError, LocalRunner
from flytune.tuner.timing import Race, TimingPlan, calmest, time_interleaved
from flytune.tuner.vendors import VENDORS, DeviceId

if TYPE_CHECKING:
    import torch

# Times that a batch is measured before a moving canary is only noted.
_BATCHES = 3
_LOCK_S = 30.0
# Share of the fastest's time that is looked into: a round takes a millisecond or so.
_SETTLED = 0.02
# Replays of the canary that wake an idle device's clocks.
_WAKING = 25


class AcceleratorRunner(LocalRunner):
    """Runs ATen's, Triton's and FlyDSL's kernels; compiles nothing.

    A fault that kills the process, as every illegal access does on AMD's, is for the
    driver to see.

    Raises:
        FlytuneError: the process does not see exactly one device, it is another than
            what is built for, or another process times on it.
    """

    def __init__(self, device: Device) -> None:
        import torch

        self._vendor = VENDORS[device.vendor]
        self.id = _only_device(device)
        self._lock = lock_device(self._vendor.lock_name(self.id))
        super().__init__(device)
        self._stream = torch.cuda.Stream()
        self._telemetry = self._vendor.telemetry(self.id)
        self._weights: tuple[torch.Tensor, ...] = ()
        self._out: torch.Tensor | None = None
        self._canary = Canary(self._stream, device.kind)
        if not self._canary.is_right():
            raise FlytuneError(f"the device multiplies wrongly: {self.id.uuid}")
        load_driver()

    def measure(self, names: Sequence[str], plan: TimingPlan) -> tuple[RunResult, ...]:
        """Time checked candidates against each other, in the order given.

        A batch that saw the canary move is measured again.

        Raises:
            KeyError: a name was not checked, or its check failed.
            DeviceLostError: a candidate has spoilt the device.
        """
        kernels = {name: self._kernels[name] for name in names}
        try:
            plan = replace(plan, settled=_SETTLED)
            graphs = graph_samplers(kernels, plan, self._stream)
            (race, canary_us), moved = self._race(graphs.samplers, plan)
        except RuntimeError as error:
            self._after_fault(str(error))
            raise
        reading = self._telemetry.read()
        notes = [str(reading)] if str(reading) else []
        if disturbed := moved > CANARY_MOVED:
            notes.append(f"canary moved by {moved:.1%}")
        results = []
        for name in names:
            how = "events" if name in graphs.uncaptured else self._vendor.graph
            what = f"{how} of {graphs.launches[name]} launches"
            words = "; ".join([what, self._what_was_warm(), *notes])
            timed = self._timed(race, name, words)
            results.append(
                replace(
                    timed,
                    disturbed=disturbed,
                    clock_mhz=reading.clock_mhz,
                    device_uuid=self.id.uuid,
                    canary_us=canary_us,
                )
            )
        return tuple(results)

    def _race(
        self, samplers: Any, plan: TimingPlan
    ) -> tuple[tuple[Race, float], float]:
        """Return the samples with the canary's time, and by what share it moved."""
        for _ in range(_WAKING):
            self._canary.time_us()

        def run() -> tuple[tuple[Race, float], float]:
            before = self._canary.time_us()
            race = time_interleaved(samplers, plan)
            after = self._canary.time_us()
            return (race, (before + after) / 2), abs(after / before - 1)

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

    def end(self) -> None:
        """Forget the task, and free what it took of the device's memory."""
        self._weights, self._out = (), None
        super().end()

    def _make_kernels(
        self, candidate: Candidate, task: TuneTask, operands: Operands
    ) -> tuple[Kernel, ...]:
        import torch

        make = make_launch(candidate)
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


def _only_device(device: Device) -> DeviceId:
    """Return which device this process sees.

    Raises:
        FlytuneError: it sees none, several, or another product.
    """
    import torch

    seen = [
        torch.cuda.get_device_properties(at) for at in range(torch.cuda.device_count())
    ]
    if len(seen) != 1:
        found = ", ".join(map(pci_id, seen)) or "none"
        raise FlytuneError(f"a runner must see one device, and sees {found}")
    if (product := product_of(seen[0])) != device.name:
        raise FlytuneError(f"a device is no {device.name}: {product}")
    return DeviceId(f"GPU-{seen[0].uuid}", pci_id(seen[0]))


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


def lock_device(name: str) -> IO[str]:
    """Hold a device for timing until the file that is returned is closed.

    Waits a while: a process that was killed may still be dying.

    Raises:
        FlytuneError: another process of this host holds it.
    """
    path = Path(tempfile.gettempdir()) / f"flytune-{name}.lock"
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
                f"another flytune times on this device: {name}",
                hint="wait for it, or show this one another device",
            ) from error
