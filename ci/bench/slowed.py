"""A candidate that really takes longer: its launch waits for a share of its own time.

It is behind Inductor's `BenchmarkRequest`, in the process that times it. With a share
of nothing it is a twin: the same work under another name.
"""

import json
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
        share, clock = self._share, time.perf_counter_ns

        def slowed() -> Any:
            start = clock()
            result = launch()
            now = clock()
            end = now + (now - start) * share
            while clock() < end:
                pass
            return result

        return slowed if share else launch


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
