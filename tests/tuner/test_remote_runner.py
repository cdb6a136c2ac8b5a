import errno
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from fakes import candidate, library, task
from ray import exceptions as broken

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.device_process import DeviceGoneError, DeviceProcess, RunnerDiedError
from flytune.tuner.remote_runner import RemoteRunner
from flytune.tuner.runner import Device, DeviceLostError
from flytune.tuner.timing import TimingPlan

DEVICE = Device("test", cache_bytes=2**16, rotation_bytes=2**20)


class Scripted(RemoteRunner):
    """A runner whose actor dies at chosen measurements of several candidates."""

    def __init__(self, *deaths: bool, doubtful: bool = False) -> None:
        super().__init__(DEVICE, 2, Deadlines())
        self.deaths, self.doubtful = list(deaths), doubtful
        self._process: Any = self

    def call(self, method: str, deadline_s: float, *args: Any) -> Any:
        match method:
            case "check":
                return [RunResult(b.choice_hash, Status.OK) for b in args[0]]
            case "measure":
                return self._times(args[0])

    def _times(self, names: Sequence[str]) -> tuple[RunResult, ...]:
        together = len(names) > 1
        if together and self.deaths.pop(0):
            reason = "the device's process died"
            raise RunnerDiedError(
                Status.FAULT, reason, killed=True, doubtful=self.doubtful
            )
        samples = (2.0 if together else 1.0,) * 9
        return tuple(RunResult(n, Status.OK, samples_us=samples) for n in names)


def ran(runner: RemoteRunner, made: TuneTask) -> tuple[RunResult, ...]:
    builds = [BuildResult(c.choice_hash, Status.OK) for c in made.offered.candidates]
    return runner.run(made, builds, TimingPlan())


def test_times_of_separate_runs_are_not_compared() -> None:
    runner = Scripted(True, False)
    results = ran(runner, task([library(), candidate("x"), candidate("y")]))
    assert [r.samples_us[0] for r in results] == [2.0, 2.0, 2.0]
    assert runner.deaths == []


def test_what_dies_together_a_second_time_is_unstable() -> None:
    runner = Scripted(True, True)
    results = ran(runner, task([library(), candidate("x")]))
    why = "well alone, but timed with the others: the device's process died"
    assert [(r.status, r.reason) for r in results] == [(Status.UNSTABLE, why)] * 2
    assert runner.deaths == []


def test_who_may_have_been_killed_is_timed_again() -> None:
    runner = Scripted(True, False, doubtful=True)
    results = ran(runner, task([library(), candidate("x"), candidate("y")]))
    # Together at once: nobody need be found out.
    assert [r.samples_us[0] for r in results] == [2.0, 2.0, 2.0]
    assert runner.deaths == []


def test_one_more_kill_while_the_culprit_is_sought_costs_nobody() -> None:
    runner = Scripted(True, True, True, False, doubtful=True)
    results = ran(runner, task([library(), candidate("x")]))
    assert {r.status for r in results} == {Status.OK}
    assert runner.deaths == []


def test_what_a_device_that_has_left_reaches_is_not_known() -> None:
    class Gone(Scripted):
        def call(self, method: str, deadline_s: float, *args: Any) -> Any:
            raise DeviceGoneError("its node has left")

    assert Gone().ceilings({}) == {}


def test_a_node_with_another_torch_does_not_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Answers:
        def __getattr__(self, name: str) -> Any:
            # As its node answers where it joined with another one.
            words = "software.torch: `2.9` there, `2.15` here"
            return SimpleNamespace(remote=lambda *_: words if name == "ready" else "")

    process = DeviceProcess(DEVICE, 2, 1.0, node="n")
    process._actor = Answers()
    monkeypatch.setattr(ray, "wait", lambda asked, **_: (asked, []))
    monkeypatch.setattr(ray, "get", lambda answer, **_: answer)
    monkeypatch.setattr(ray, "kill", lambda _: None)
    with pytest.raises(DeviceGoneError, match=r"cannot time: software\.torch"):
        process.call("begin", 1.0, None)
    # Nor is it asked again.
    with pytest.raises(DeviceGoneError):
        process.start()


def test_a_device_that_was_given_back_starts_no_process() -> None:
    runner = RemoteRunner(DEVICE, 2, Deadlines())
    runner.stop()
    with pytest.raises(DeviceGoneError):
        ran(runner, task([library()]))


class Actor:
    """An actor whose every call is one that `ray.get` is made to fail."""

    def __getattr__(self, name: str) -> Any:
        return self

    def remote(self, *_: Any) -> None:
        return None


def called(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> Any:
    """Return what a runner makes of a call that ends so."""

    def get(*_: Any, **__: Any) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    process = DeviceProcess(DEVICE, 2, 1.0)
    process._actor, process._ready = Actor(), True
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", lambda _: None)
    return process.call("check", 1.0)


@pytest.mark.parametrize(
    ("error", "status", "cost"),
    [
        (broken.ActorDiedError(), Status.FAULT, True),
        (broken.WorkerCrashedError(), Status.FAULT, True),
        # Another run may well have the memory.
        (broken.OutOfMemoryError("killed"), Status.OUT_OF_MEMORY, False),
        (broken.GetTimeoutError(), Status.TIMEOUT, True),
        (broken.RayTaskError("f", "trace", ValueError("x")), Status.FAULT, False),
        (broken.RayTaskError("f", "trace", DeviceLostError("x")), Status.FAULT, True),
    ],
)
def test_a_death_is_the_candidates(
    error: Exception, status: Status, cost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunnerDiedError) as caught:
        called(monkeypatch, error)
    assert caught.value.status is status
    result = caught.value.of("name")
    assert (result.status, result.cost_the_process) == (status, cost)


@pytest.mark.parametrize(
    "error",
    [
        broken.RuntimeEnvSetupError("no such file"),
        broken.LocalRayletDiedError(),
        broken.ActorUnschedulableError("the node has gone"),
        broken.NodeDiedError("gone"),
    ],
)
def test_a_failure_of_ray_is_no_candidates(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FlytuneError, match=r"^Ray cannot time here: "):
        called(monkeypatch, error)


@pytest.mark.parametrize("raised", [True, False])
def test_a_full_disk_is_no_candidates(
    raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = OSError(errno.ENOSPC, "No space left on device", "/tmp/x")
    outcome: Any = broken.RayTaskError("f", "trace", cause)
    if not raised:
        outcome = [RunResult("x", Status.FAULT, f"OSError: {cause}")]
    with pytest.raises(FlytuneError, match=r"^no space left for the workers' files: "):
        called(monkeypatch, outcome)
