"""What a batch of compilations costs the driver in calls of Ray, on this machine."""

import time
from typing import NamedTuple

from flytune.tuner.batches import Ended
from flytune.tuner.candidate import ATEN, Candidate
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.ray_builders import Limits, RayBuilders
from flytune.tuner.workers import Farm


class RayCalls(NamedTuple):
    """Seconds of the driver's thread, a batch."""

    submit_s: float
    told_s: float
    """Of waiting not for workers, but for Ray's own work: a batch begins and ends."""


def measure_calls(batches: int = 2000, at_once: int = 64) -> RayCalls:
    """Hand batches of one library's kernel to real workers, which need no compiler."""
    one = Candidate(ATEN, "mm", "{}", "library", b"")
    with Farm(None, {}, Deadlines()) as farm:
        farm.warm()
        builders = RayBuilders(None, Deadlines(), Limits())
        builders.most_at_once()
        submit_s = told_s = 0.0
        submitted = ended = 0
        # The first ones start processes.
        for number in (at_once, batches):
            submit_s = told_s = 0.0
            submitted = ended = 0
            while ended < number:
                start = time.thread_time()
                while submitted < number and submitted - ended < at_once:
                    builders.submit([one])
                    submitted += 1
                middle = time.thread_time()
                events = builders.wait()
                told_s += time.thread_time() - middle
                submit_s += middle - start
                ended += sum(isinstance(event, Ended) for event in events)
    return RayCalls(submit_s / batches, told_s / batches)
