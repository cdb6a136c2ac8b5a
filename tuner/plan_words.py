"""A plan in words, and what the program made of it, for the log of its build."""

from flytune.caches.vllm_estimate import estimate_lines
from flytune.caches.vllm_program import VllmSpec
from flytune.shapes.reach import is_reached, reach_words, unreached
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import GIB, Plan
from flytune.tuner.progress import Progress
from flytune.tuner.tasks import Coverage


def say_plan(plan: Plan, options: BuildOptions, progress: Progress) -> None:
    """Say what a build will do, before it begins."""
    counts = _token_counts(plan, options)
    progress.say(
        f"plan: {plan.model.name}, {len(plan.shapes)} GEMMs{counts}, "
        f"{plan.policy.name} policy, about {plan.needed_bytes / GIB:.1f} GiB; kept in "
        f"{plan.work}"
    )
    if isinstance(plan.program, VllmSpec) and plan.program.factors is not None:
        for line in estimate_lines(plan.program.factors):
            progress.say(f"plan: vLLM: {line}")
    if others := unreached((*plan.shapes, *plan.left_out)):
        done = "left out" if plan.left_out else "built all the same"
        reached = sum(map(is_reached, plan.shapes))
        progress.say(f"plan: {reach_words(reached, others)}, and {done}")


def _token_counts(plan: Plan, options: BuildOptions) -> str:
    """Say at how many token counts a model is planned; a file may say its own."""
    if options.by_hand is not None or not options.model:
        return ""
    return f" at {len(options.tokens)} token count{'s' if options.tokens[1:] else ''}"


def say_coverage(coverage: Coverage, planned: int, progress: Progress) -> None:
    """Say how the lists of a program agree with its plan of so many GEMMs."""
    tasks = coverage.tasks
    candidates = sum(len(t.offered.candidates) for t in tasks)
    progress.say(f"enumerate: {len(tasks)} lists, {candidates} candidates")
    for reason, some in coverage.unlisted.items():
        progress.say(f"enumerate: no list for {_first(some)}: {reason}")
    # Of a command alone nothing is planned.
    for offered in coverage.unplanned if planned else ():
        progress.say(f"enumerate: not planned: {offered.op} in {offered.piece}")
    for reason, some in coverage.declined.items():
        progress.say(f"enumerate: no FlyDSL for {_first(some)}: {reason}")


def _first(names: tuple[str, ...]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
