"""The two winners of one list: whether they are one kernel, and one race of them."""

import math
import statistics
from collections.abc import Callable, Sequence

from flytune.caches.columns import Status
from flytune.caches.regression.kernels import is_alike, is_same
from flytune.caches.regression.raced import Raced
from flytune.caches.regression.sides import Pair
from flytune.caches.ties import drawn_mean
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.decision import files_digest
from flytune.tuner.timing import TimingPlan

_ROUNDS = 100
# Nobody leaves early, and nothing is looked at midway.
PLAN = TimingPlan(rough_rounds=_ROUNDS + 1, rounds=_ROUNDS, max_rounds=_ROUNDS)


def without_race(pair: Pair, *, same_software: bool) -> Raced | None:
    """Return what is known of two winners without timing; None where nothing is."""
    old, new = pair.old.winner, pair.new.winner
    assert old is not None, "only lists that two kernels won"
    assert new is not None, "only lists that two kernels won"
    if is_same(old, new, same_software=same_software):
        return Raced(same=True)
    if not is_alike(old, new):
        return None
    if same_software:
        return Raced(same=True)
    return Raced(
        why="one choice, which other software has made another kernel of: here it is "
        "compiled by one software alone"
    )


def unraced(builds: Sequence[BuildResult]) -> Raced | None:
    """Return why two winners do not race; None where they do."""
    for which, build in zip(("old", "new"), builds, strict=False):
        if build.status is not Status.OK:
            said = f"{build.status}: {build.reason}"
            return Raced(why=f"the {which} winner cannot be compiled here: {said}")
    digests = [files_digest(build.files) for build in builds]
    if len(builds) == 1 or (digests[0] is not None and digests[0] == digests[-1]):
        return Raced(same=True)
    return None


def once(
    run: Callable[..., tuple[RunResult, ...]],
    task: TuneTask,
    builds: Sequence[BuildResult],
    number: int,
) -> tuple[float, float, str]:
    """Race twice in one process, each kernel first once.

    Args:
        run: A runner's.
        builds: The old winner's, then the new one's.
        number: Of the process: whether the old kernel is first at first.

    Returns:
        The logarithm of the new kernel's time over the old one's, the old one's time in
        microseconds, and why there are none.
    """
    shifts, times = [], []
    for turn in (number, number + 1):
        order = slice(None, None, -1 if turn % 2 else 1)
        results = run(task, builds[order], PLAN)[order]
        for which, result in zip(("old", "new"), results, strict=True):
            if result.status is not Status.OK:
                said = f"{result.status}: {result.reason}"
                return 0.0, 0.0, f"the {which} winner fails here: {said}"
        old, new = (result.samples_us for result in results)
        logs = [math.log(b / a) for a, b in zip(old, new, strict=True)]
        shifts.append(drawn_mean(logs)[0])
        times.append(statistics.median(old))
    return statistics.fmean(shifts), statistics.fmean(times), ""
