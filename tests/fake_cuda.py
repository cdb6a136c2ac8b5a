"""A `torch.cuda` of one device whose tensors lie on the CPU.

It stands for what cannot be had here, a device: kernels run when they are launched, and
a replayed graph takes as long as its capture did. All else of a runner is its own.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from amdsmi_fake import PCI_ID

from flytune.tuner import accelerator_runner, accelerator_timing

# The real canary takes a CPU seconds.
_CANARY_SIZE = 64
PRODUCT = "a device of gfx950"


class Stream:
    """Launches are done when they return, so that nothing waits."""

    def wait_stream(self, other: "Stream") -> None:
        pass


class Event:
    def __init__(self, device: "FakeCuda") -> None:
        self._device, self.at = device, 0.0

    def record(self, stream: Stream) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        self._device.synchronize()

    def elapsed_time(self, end: "Event") -> float:
        return (end.at - self.at) * 1e3


class Graph:
    seconds = 0.0

    def replay(self) -> None:
        time.sleep(self.seconds)


@dataclass
class FakeCuda:
    """The device's state, which tests change."""

    devices: list[Any] = field(default_factory=lambda: [properties()])
    lost: str = ""
    """What every synchronization raises from now on."""
    stream: Stream = field(default_factory=Stream)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Replace what the runner asks of `torch.cuda`."""
        for name, value in {
            "Stream": Stream,
            "Event": lambda enable_timing: Event(self),
            "CUDAGraph": Graph,
            "current_stream": lambda: self.stream,
            "device_count": lambda: len(self.devices),
            "get_device_properties": lambda at: self.devices[at],
            "graph": self._graph,
            "stream": self._stream,
            "synchronize": self.synchronize,
        }.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(accelerator_timing, "_CANARY_SIZE", _CANARY_SIZE)
        # Triton's own way to the driver, which is no part of torch.
        patch.setattr(accelerator_runner, "load_driver", lambda: None)
        # What a kernel of FlyDSL's is launched on.
        interface = "torch._dynamo.device_interface.CudaInterface.get_raw_stream"
        patch.setattr(interface, staticmethod(lambda _: 0))

    @contextlib.contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextlib.contextmanager
    def _graph(self, graph: Graph, stream: Stream) -> Iterator[None]:
        start = time.perf_counter()
        with self._stream(stream):
            yield
        graph.seconds = time.perf_counter() - start

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError(self.lost)


def properties(**changes: Any) -> Any:
    """Return a device's, as torch has them; its PCI address is `PCI_ID`."""
    domain, bus, device = (int(p, 16) for p in PCI_ID.removesuffix(".0").split(":"))
    whole = {
        "name": PRODUCT,
        "uuid": "00112233-4455-6677-8899-aabbccddeeff",
        "pci_domain_id": domain,
        "pci_bus_id": bus,
        "pci_device_id": device,
    }
    return SimpleNamespace(**(whole | changes))
