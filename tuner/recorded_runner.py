"""A runner without a device: times that somebody recorded, each with its source.

Tables of others have one time a backend, its best. It goes to the backend's candidate
that the fixed order names first, which stands for all of them; the others have no
time. What has none at all stays untimed, and is decided by the fixed order.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from flytune.caches.recorded import RecordedTime
from flytune.caches.records import Status
from flytune.shapes.gemm import GemmShape
from flytune.tuner.candidate import BuildResult, Candidate, RunResult, TuneTask
from flytune.tuner.select import fixed_order
from flytune.tuner.timing import TimingPlan

METHOD = "recorded"
_NO_TIME = "no recorded time"
_Problem = tuple[str, int, int, int, int, str]


class RecordedRunner:
    """Answers with recorded times, behind the interface of the real runners."""

    def __init__(self, times: Iterable[RecordedTime]) -> None:
        self._times: dict[_Problem, list[RecordedTime]] = {}
        for time in times:
            self._times.setdefault(_of_time(time), []).append(time)
        self._found: Mapping[str, RecordedTime] = {}

    def timed(self, task: TuneTask) -> frozenset[str]:
        """Return the hashes of a task's candidates that have a time."""
        self.begin(task)
        return frozenset(self._found)

    def run(
        self, task: TuneTask, builds: Sequence[BuildResult]
    ) -> tuple[RunResult, ...]:
        """Return a result for each build of a task, in their order."""
        self.begin(task)
        checked = [self.check(build) for build in builds]
        names = [r.choice_hash for r in checked if r.status is Status.OK]
        measured = {r.choice_hash: r for r in self.measure(names, TimingPlan())}
        return tuple(measured.get(r.choice_hash, r) for r in checked)

    def begin(self, task: TuneTask) -> None:
        """Find the times of a task's candidates; forget the task before."""
        times = [
            time
            for time in self._times.get(_of_shape(task.shape), [])
            if time.layout in ("", task.shape.layout)
        ]
        self._found = _by_candidate(task.offered.candidates, times)

    def check(self, build: BuildResult) -> RunResult:
        """Say whether a candidate was built and has a time; nothing is run."""
        name = build.choice_hash
        if build.status is not Status.OK:
            return RunResult(name, build.status, build.reason)
        if name not in self._found:
            return RunResult(name, Status.UNSUPPORTED, _NO_TIME)
        return RunResult(name, Status.OK)

    def measure(self, names: Sequence[str], plan: TimingPlan) -> tuple[RunResult, ...]:
        """Return the recorded times of checked candidates.

        Raises:
            KeyError: a name has none.
        """
        return tuple(self._recorded(name, self._found[name]) for name in names)

    def _recorded(self, name: str, time: RecordedTime) -> RunResult:
        # As often as a difference needs that is believed: a recorded time has no noise.
        samples = (time.us, time.us)
        return RunResult(
            name, Status.OK, samples_us=samples, method=METHOD, source=time.source
        )


def only(task: TuneTask, names: Collection[str]) -> TuneTask:
    """Return a task with some of its candidates."""
    kept = tuple(c for c in task.offered.candidates if c.choice_hash in names)
    return replace(task, offered=replace(task.offered, candidates=kept))


def untimed(choice_hash: str) -> BuildResult:
    """Return the result of a candidate that is not built, for it has no time."""
    return BuildResult(choice_hash, Status.UNSUPPORTED, _NO_TIME)


def _by_candidate(
    candidates: Iterable[Candidate], times: Iterable[RecordedTime]
) -> dict[str, RecordedTime]:
    """Return the time of each candidate that has one; the least, where several have."""
    ordered = sorted(candidates, key=fixed_order)
    first = {c.backend: c.choice_hash for c in reversed(ordered)}
    hashes = {c.choice_hash for c in ordered}
    found: dict[str, RecordedTime] = {}
    for time in times:
        name = time.choice_hash or first.get(time.backend, "")
        if name in hashes and (name not in found or time.us < found[name].us):
            found[name] = time
    return found


def _of_time(time: RecordedTime) -> _Problem:
    return (time.op, time.m, time.n, time.k, time.groups, time.dtype)


def _of_shape(shape: GemmShape) -> _Problem:
    dtype = shape.scaling or shape.a_dtype
    return (shape.op, shape.m, shape.n, shape.k, shape.groups, dtype)
