"""What stands for timing where the device is not here: to compile alone."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from flytune.caches.policy import uses_flydsl
from flytune.caches.recorded import RecordedTime, read_recorded
from flytune.shapes.errors import FlytuneError
from flytune.shapes.model_config import ModelConfig
from flytune.tuner.candidate import BuildResult, TuneTask
from flytune.tuner.decision import Decision, decide
from flytune.tuner.eager_flydsl import OPS, EagerBuild, build_all_eager
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.publish import Made
from flytune.tuner.publish_compiled import Compiled
from flytune.tuner.quarantine import NAME, Quarantine
from flytune.tuner.recorded_runner import RecordedRunner, only, untimed
from flytune.tuner.rocm_tools import rocm_for_flydsl, tools_of
from flytune.tuner.timed_device import device_of
from flytune.tuner.work import StartFarm, Work


def compile_only(made: Made, start: StartFarm, progress: Progress) -> Compiled:
    """Compile what the device would choose from, and decide what others have timed.

    Raises:
        FlytuneError: no list has a recorded time, or Ray cannot be had.
    """
    plan, options, tasks = made.plan, made.options, made.coverage.tasks
    eager: tuple[EagerBuild, ...] = ()
    if ops := [op for op in options.ops if op in OPS]:
        assert plan.profile is not None, "refused by the plan"
        model = plan.model
        assert isinstance(model, ModelConfig), "refused by the plan"
        sizes = {
            "hidden": model.hidden_size,
            "vocabulary": model.vocab_size,
            "dtype": model.dtype,
        }
        eager = build_all_eager(ops, sizes, plan.policy, plan.profile, plan.work)
        progress.say(f"build: {len(eager)} kernels that torch runs by itself")
    if options.recorded is None:
        builds = _compile_all(plan, tasks, options, start, progress)
        return Compiled(builds, _tools(plan), eager=eager)
    times = _recorded_times(options.recorded, progress)
    given = (tasks, options, times, start, progress)
    decisions, builds = _decide_recorded(plan, *given)
    return Compiled(builds, _tools(plan), decisions, eager)


def _recorded_times(path: Path, progress: Progress) -> tuple[RecordedTime, ...]:
    table = read_recorded(path)
    if table.passed_over:
        progress.say(f"tune: passed over {table.passed_over} rows without a time")
    return table.times


def _tools(plan: Plan) -> dict[str, str]:
    """Return what this host links FlyDSL's kernels with, for the manifest."""
    if not uses_flydsl(plan.policy):
        return {}
    return tools_of(rocm_for_flydsl(plan.work))


def _compile_all(
    plan: Plan,
    tasks: Sequence[TuneTask],
    options: BuildOptions,
    start: StartFarm,
    progress: Progress,
) -> Mapping[str, BuildResult]:
    """Build every candidate of every list, by choice hash, and time none.

    Raises:
        FlytuneError: Ray cannot be had.
    """
    device = device_of(plan).name
    quarantine = Quarantine(options.work / NAME, device, options.exclude)
    return Work(start(), plan, options, progress, quarantine).built(tasks)


def _decide_recorded(
    plan: Plan,
    tasks: Sequence[TuneTask],
    options: BuildOptions,
    times: Iterable[RecordedTime],
    start: StartFarm,
    progress: Progress,
) -> tuple[tuple[Decision, ...], Mapping[str, BuildResult]]:
    """Decide by recorded times; build what has one, and nothing else.

    Returns:
        The decisions, in the order of the tasks, and what was built.

    Raises:
        FlytuneError: no list has a time, one has no candidate that was built, or Ray
            cannot be had.
    """
    runner = RecordedRunner(times)
    timed = [runner.timed(task) for task in tasks]
    if not any(timed):
        raise FlytuneError(
            f"no list of this build has a recorded time: {options.recorded}",
            hint="compile its candidates alone with --compile-only",
        )
    wanted = [only(task, names) for task, names in zip(tasks, timed, strict=True)]
    progress.say(
        f"tune: {sum(map(bool, timed))} of {len(tasks)} lists have recorded times"
    )
    built = _compile_all(plan, wanted, options, start, progress)
    decisions = []
    for task in tasks:
        builds = [
            built.get(c.choice_hash, untimed(c.choice_hash))
            for c in task.offered.candidates
        ]
        decisions.append(decide(task, builds, runner.run(task, builds)))
    return tuple(decisions), built
