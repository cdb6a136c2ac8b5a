"""A candidate that really takes longer: its launch waits for a share of its own time.

It is behind Inductor's `BenchmarkRequest`, in the process that times it. With a share
of nothing it is a twin: the same work under another name.
"""

import json
import math
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ray import cloudpickle

from flytune.caches.columns import Status
from flytune.tuner.candidate import BuildResult, Candidate


class Slowed:
    """A request whose launches take longer than those of the one inside."""

    def __init__(self, request: bytes, share: float) -> None:
        self._request, self._share = request, share

    @property
    def has_out_variant(self) -> bool:
        """As the request's inside."""
        return bool(pickle.loads(self._request).has_out_variant)

    def make_run_fn(self, *tensors: Any, out: Any) -> Callable[[], Any]:
        """Return the launch."""
        launch: Callable[[], Any] = pickle.loads(self._request).make_run_fn(
            *tensors, out=out
        )
        if not self._share:
            return launch
        empty = waiting(lambda: None, 0.0, 0.0)
        return waiting(launch, self._share, _least_ns(empty))


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


def _least_ns(launch: Callable[[], Any]) -> float:
    """Return what a launch takes when nothing disturbs it."""
    clock, calls = time.perf_counter_ns, 100
    least = math.inf
    for _ in range(50):
        start = clock()
        for _ in range(calls):
            launch()
        least = min(least, (clock() - start) / calls)
    return least


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
