"""Time launches on an accelerator by replaying graphs of them between two events.

A graph holds many launches over copies of the weight that together exceed the
last-level cache, so that the weight comes from memory as in serving; and it is replayed
twice in a row, so that the host's own time for a launch is in no sample.
"""

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flytune.tuner.kernels import Kernel
from flytune.tuner.timing import Sampler, TimingPlan, repeats_needed

_CANARY_SIZE = 4096
_CANARY_REPLAYS = 7
# A settled device repeats the canary within a hundredth.
CANARY_MOVED = 0.03


@dataclass(frozen=True, slots=True)
class GraphSamplers:
    """Samplers by candidate, and those that no graph could hold."""

    samplers: Mapping[str, Sampler]
    launches: Mapping[str, int]
    """Launches a sample."""
    uncaptured: frozenset[str]


def graph_samplers(
    kernels: Mapping[str, Sequence[Kernel]], plan: TimingPlan, stream: Any
) -> GraphSamplers:
    """Return a sampler for each candidate, warmed up.

    Args:
        kernels: By candidate, the same launch over copies of its weight, bound to
            `stream`.
        plan: How long to measure.
        stream: A `torch.cuda.Stream` that is not the default one.

    Raises:
        RuntimeError: a launch fails.
    """
    samplers: dict[str, Sampler] = {}
    counts: dict[str, int] = {}
    uncaptured = set()
    for name, launches in kernels.items():
        once = functools.partial(_launch_all, launches, len(launches), stream)
        for _ in range(plan.warm_up):
            once()
        once_us = _between_events(once, stream) / len(launches)
        count = _count(once_us, launches, plan)
        replay = _captured(launches, count, stream)
        if replay is not None:
            # Now without the host's own time for a launch, which may be most of it.
            replay()
            count = _count(_sample_us(replay, count, stream), launches, plan)
            replay = _captured(launches, count, stream)
        if replay is None:
            uncaptured.add(name)
            replay = functools.partial(_launch_all, launches, count, stream)
        replay()
        samplers[name] = functools.partial(_sample_us, replay, count, stream)
        counts[name] = count
    return GraphSamplers(samplers, counts, frozenset(uncaptured))


def _count(once_us: float, launches: Sequence[Kernel], plan: TimingPlan) -> int:
    """Return the launches of a sample: every copy as often as any other."""
    turns = math.ceil(repeats_needed(once_us, plan) / len(launches))
    return turns * len(launches)


def _captured(
    launches: Sequence[Kernel], count: int, stream: Any
) -> Callable[[], None] | None:
    """Return the replay of a graph of `count` launches; None where it is refused."""
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            for number in range(count):
                launches[number % len(launches)]()
    except RuntimeError:
        # What may not be captured ends the capture; the device is as well as before.
        torch.cuda.synchronize()
        return None

    def replay() -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay


def _launch_all(launches: Sequence[Kernel], count: int, stream: Any) -> None:
    import torch

    with torch.cuda.stream(stream):
        for number in range(count):
            launches[number % len(launches)]()


def _sample_us(replay: Callable[[], None], count: int, stream: Any) -> float:
    return _between_events(replay, stream) / count


def _between_events(work: Callable[[], None], stream: Any) -> float:
    """Return the microseconds that the device takes for `work`.

    It does it twice, and the second time counts: meanwhile the host launches what is
    timed, which else would wait for it; and whoever was before, its own code is loaded.
    """
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    work()
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


class Canary:
    """A GEMM of known result and steady time: it tells when a device is not itself."""

    def __init__(self, stream: Any, kind: str) -> None:
        """Make the GEMM.

        Args:
            stream: As for `graph_samplers`.
            kind: torch's type of the device.
        """
        import torch

        generator = torch.Generator(kind).manual_seed(1)
        sizes = (_CANARY_SIZE, _CANARY_SIZE)
        self._a, self._b = (
            torch.randint(-2, 3, sizes, generator=generator, device=kind).bfloat16()
            for _ in range(2)
        )
        self._out = torch.empty_like(self._a)
        self._stream = stream
        launches = [self._launch]
        _launch_all(launches, 2, stream)
        torch.cuda.synchronize()
        replay = _captured(launches, 4, stream)
        assert replay is not None
        self._replay = replay

    def _launch(self) -> "Any":
        import torch

        return torch.mm(self._a, self._b, out=self._out)

    def is_right(self) -> bool:
        """Whether the device still multiplies: integers this small have no rounding.

        Raises:
            RuntimeError: the device does nothing any more.
        """
        import torch

        self._out.fill_(torch.nan)
        torch.cuda.synchronize()
        _launch_all([self._launch], 1, self._stream)
        torch.cuda.synchronize()
        rows = slice(0, 64)
        want = self._a[rows].double() @ self._b.double()
        return bool((self._out[rows] == want.bfloat16()).all())

    def time_us(self) -> float:
        """Return the median time of the GEMM."""
        samples = [
            _sample_us(self._replay, 4, self._stream) for _ in range(_CANARY_REPLAYS)
        ]
        return statistics.median(samples)
