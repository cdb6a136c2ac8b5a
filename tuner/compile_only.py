"""What stands for timing where the device is not here: to compile alone."""

from pathlib import Path

from flytune.caches.policy import uses_flydsl
from flytune.caches.recorded import RecordedTime, read_recorded
from flytune.shapes.model_config import ModelConfig
from flytune.tuner.eager_flydsl import OPS, EagerBuild, build_all_eager
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.publish import Made
from flytune.tuner.publish_compiled import Compiled
from flytune.tuner.rocm_tools import rocm_for_flydsl, tools_of
from flytune.tuner.search import compile_all, decide_recorded
from flytune.tuner.work import StartFarm


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
        builds = compile_all(plan, tasks, options, start, progress)
        return Compiled(builds, _tools(plan), eager=eager)
    times = _recorded_times(options.recorded, progress)
    decisions, builds = decide_recorded(plan, tasks, options, times, start, progress)
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
