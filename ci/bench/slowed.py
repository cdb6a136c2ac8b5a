"""A candidate that really takes longer: its launch waits for a share of its own time.

It is behind Inductor's `BenchmarkRequest`, in the process that times it. With a share
of nothing it is a twin: the same work under another name.
"""

import json
import pickle
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ray import cloudpickle

from flytune.caches.columns import Status
from flytune.tuner.candidate import BuildResult, Candidate

_PAIRS = 100


class Slowed:
    """A request whose launches take longer than those of the one inside."""

    def __init__(self, request: bytes, share: float) -> None:
        self._request, self._share = request, share
        self._own = 0.0
        """On a CPU what looking at the clock takes, in nanoseconds; on an accelerator
        the cycles to wait."""
        self.module_path = ""
        """Set where the kernel's module is another copy than its request names."""

    @property
    def has_out_variant(self) -> bool:
        """As the request's inside."""
        return bool(getattr(pickle.loads(self._request), "has_out_variant", True))

    @property
    def module_cache_key(self) -> Any:
        """As the request's inside."""
        return pickle.loads(self._request).module_cache_key

    @property
    def kernel_name(self) -> Any:
        """As the request's inside."""
        return pickle.loads(self._request).kernel_name

    def make_run_fn(self, *tensors: Any, out: Any) -> Callable[[], Any]:
        """Return the launch."""
        request = pickle.loads(self._request)
        if self.module_path:
            request.module_path = self.module_path
        launch: Callable[[], Any] = request.make_run_fn(*tensors, out=out)
        if not self._share:
            return launch
        # Measured once: the copies of a weight make launches alike.
        if getattr(out, "is_cuda", False):
            self._own = self._own or _cycles(launch, self._share)
            return followed(launch, round(self._own))
        self._own = self._own or _looking_ns(launch)
        return waiting(launch, self._share, self._own)


def followed(launch: Callable[[], Any], cycles: int) -> Callable[[], Any]:
    """Return a launch that a kernel follows on the accelerator, which waits."""
    import torch

    def pair() -> Any:
        result = launch()
        torch.cuda._sleep(cycles)
        return result

    return pair


def _cycles(launch: Callable[[], Any], share: float) -> int:
    """Return the cycles that a kernel after a launch waits for a share of its time.

    The host's clock does not see how long a launch takes there: both are measured, with
    what a second kernel takes by itself, which is part of the wait.
    """
    import torch

    sleep: Callable[[int], None] = torch.cuda._sleep
    few, many = 20_000, 220_000
    cycle_us = (_device_us(lambda: sleep(many)) - _device_us(lambda: sleep(few))) / (
        many - few
    )

    own_us = _device_us(launch)
    empty_us = _device_us(followed(launch, 1)) - own_us
    return max(1, round((own_us * share - empty_us) / cycle_us))


def _device_us(launch: Callable[[], Any]) -> float:
    """Return what a launch takes on the device, of many in a row."""
    import torch

    times, number = [], 20
    for _ in range(7):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(number):
            launch()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / number)
    return statistics.median(times)


def waiting(
    launch: Callable[[], Any], share: float, own_ns: float
) -> Callable[[], Any]:
    """Return a launch that waits for a share of what it took.

    Args:
        own_ns: What looking at the clock takes by itself, which is part of the wait.
    """
    clock = time.perf_counter_ns

    def waited() -> Any:
        start = clock()
        result = launch()
        now = clock()
        end = now + (now - start) * share - own_ns
        while clock() < end:
            pass
        return result

    return waited


def _looking_ns(launch: Callable[[], Any]) -> float:
    """Return by how much looking at the clock makes a launch longer, wait aside."""
    looked, clock = waiting(launch, 0.0, 0.0), time.perf_counter_ns
    more = []
    for _ in range(_PAIRS):
        start = clock()
        launch()
        middle = clock()
        looked()
        more.append(clock() - middle - (middle - start))
    return statistics.median(more)


# The timing process has no such module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def slowed(
    candidate: Candidate, built: BuildResult, share: float
) -> tuple[Candidate, BuildResult]:
    """Return a candidate and its build, as a kernel of its own that takes longer.

    Args:
        share: Of a launch's time, by which it takes longer; 0 for a twin.
    """
    name = f"{candidate.choice_hash}-slower-{share:g}"
    # Beside what is fused, as Inductor writes it.
    config = {**json.loads(candidate.config), "slower": str(share)}
    other = replace(
        candidate,
        config=json.dumps(config, sort_keys=True),
        choice_hash=name,
        request=cloudpickle.dumps(Slowed(candidate.request, share)),
    )
    assert built.status is Status.OK, "it has been timed"
    files = dict(built.files)
    if files:
        # Other code has other files.
        files[f"slowed/{len(files)}.so"] = name.encode()
    return other, replace(built, choice_hash=name, files=files)
