"""`flytune build`: the pipeline, top to bottom."""

import contextlib
import functools
import pickle
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flytune.caches.bundle import Bundle
from flytune.caches.child import clean_environment, run_module
from flytune.caches.command import CommandSpec
from flytune.caches.device_profile import DeviceProfile, live_profile
from flytune.caches.hook.flytune_files import exposed
from flytune.caches.key_files import load_private
from flytune.caches.keyring import OWN_NAME, keys_folder, own_key
from flytune.caches.policy import uses_flydsl
from flytune.caches.recorded import RecordedTime, read_recorded
from flytune.caches.stand_in import stand_in_environment
from flytune.caches.target import Target
from flytune.caches.target_env import check_target_env
from flytune.caches.vllm_program import VllmSpec
from flytune.shapes.errors import FlytuneError
from flytune.shapes.model_config import ModelConfig
from flytune.tuner.bake import bake
from flytune.tuner.candidate import Enumeration
from flytune.tuner.cluster import check_address
from flytune.tuner.command_stages import list_command
from flytune.tuner.decision import timings
from flytune.tuner.eager_flydsl import OPS, EagerBuild, build_all_eager
from flytune.tuner.journal import Journal
from flytune.tuner.older import OlderBundle
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan, make_plan
from flytune.tuner.plan_words import say_plan
from flytune.tuner.progress import Progress
from flytune.tuner.publish import PACKING, Built, Made, publish
from flytune.tuner.publish_compiled import Compiled, publish_compiled
from flytune.tuner.rocm_tools import rocm_for_flydsl, tools_of
from flytune.tuner.search import compile_all, decide_recorded, search
from flytune.tuner.tasks import Coverage, join
from flytune.tuner.unchanged import publish_unchanged
from flytune.tuner.work import StartFarm, farm_for

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PROBE = "flytune.tuner.probe"
_LISTS = "lists.pickle"


def build(options: BuildOptions, progress: Progress) -> Built:
    """Tune a model's GEMMs and publish the verified bundle at `options.out`.

    Raises:
        FlytuneError: the build cannot start or end well; what was finished is kept in
            `options.work` and the same command goes on from there.
    """
    _check_named(options)
    progress.begin("plan")
    plan = make_plan(options)
    say_plan(plan, options, progress)
    keys = _keys(options, progress)
    older = _older(plan, options, progress)
    with Journal(plan.work / "journal.jsonl") as journal:
        _clear(plan.work, options.fresh, journal)
        if older is not None:
            built = publish_unchanged(plan, options, older, keys, progress)
            if built is not None:
                return built
        with contextlib.ExitStack() as ray:
            start = functools.cache(lambda: ray.enter_context(farm_for(plan, options)))
            progress.begin("enumerate")
            found = _enumerate(plan, options, start, progress)
            _check_keys(plan, found, options, older, progress)
            coverage = join(plan.shapes, found.lists, found.unlisted)
            _report_coverage(coverage, len(plan.shapes), progress)
            _check_excluded(coverage, options.exclude)
            made = Made(plan, options, found, coverage, keys)
            if older is not None and (taken := older.take_kernels(plan.work / "built")):
                progress.say(f"build: {taken} candidates compiled by an earlier build")
            progress.begin("build" if options.runs_nothing else "tune")
            if options.runs_nothing:
                compiled = _compile(made, start, progress)
                return publish_compiled(made, compiled, progress)
            same = () if older is None else older.same
            upgrade = None if older is None else older.upgrade
            decisions, ceilings = search(
                *(plan, coverage.tasks, options, journal, same, start, progress),
                upgrade=upgrade,
            )
            made = replace(made, ceilings=ceilings or (older.ceilings if older else {}))
        # Without Ray: a bake has the host to itself.
        progress.begin("bake")
        baked = bake(plan, timings(decisions), found.system, options, progress)
        decisions = tuple(decision.as_baked(baked.taken) for decision in decisions)
        if isinstance(plan.program, VllmSpec):
            program = plan.program.after_bake(baked.cache_dir)
            made = replace(made, plan=replace(plan, program=program))
        return publish(made, decisions, baked, progress)


def _older(plan: Plan, options: BuildOptions, progress: Progress) -> OlderBundle | None:
    """Return the older bundle that is named, and say what of it survives here."""
    if options.from_bundle is None:
        return None
    older = OlderBundle(options.from_bundle, plan.target, options.trust)
    older.say(progress)
    return older


def _check_named(options: BuildOptions) -> None:
    """Refuse at once what a build would find out after minutes.

    Raises:
        FlytuneError: a file that is named is not there, or nothing answers for Ray.
    """
    if options.sign and options.key is not None:
        load_private(options.key)
    if options.from_bundle is not None:
        Bundle.open(options.from_bundle)
    if options.recorded is not None:
        read_recorded(options.recorded)
    if options.ray is not None:
        check_address(options.ray)


def _keys(options: BuildOptions, progress: Progress) -> tuple["Ed25519PrivateKey", ...]:
    """Return the keys that sign the bundle; the first build makes the user's own."""
    if not options.sign:
        return ()
    if options.key is not None:
        return (load_private(options.key),)
    path = keys_folder() / OWN_NAME
    if not path.exists():
        progress.say(f"sign: making your own key, trusted on this machine: {path}")
    return (own_key(),)


def _compile(made: Made, start: StartFarm, progress: Progress) -> Compiled:
    """Compile what the device would choose from, and decide what others have timed."""
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


def _check_keys(
    plan: Plan,
    found: Enumeration,
    options: BuildOptions,
    older: OlderBundle | None,
    progress: Progress,
) -> None:
    """Compare the software's keys, which are known once it has run.

    Raises:
        FlytuneError: the serving environment's are others.
    """
    software = {
        **plan.target.software,
        "torch_key": found.torch_key,
        "triton_key": found.triton_key,
    }
    if options.target_env is not None:
        check_target_env(options.target_env, software)
    if older is not None and older.check(Target(plan.target.hardware, software)):
        older.say(progress)


def _check_excluded(coverage: Coverage, excluded: frozenset[str]) -> None:
    """Refuse to exclude what is not offered, or all that is.

    Raises:
        FlytuneError: a hash is in no list, or a list has no candidate left.
    """
    lists = [
        {candidate.choice_hash for candidate in task.offered.candidates}
        for task in coverage.tasks
    ]
    if unknown := excluded.difference(*lists):
        raise FlytuneError(f"no list offers what --exclude names: `{min(unknown)}`")
    for task, hashes in zip(coverage.tasks, lists, strict=True):
        if hashes <= excluded:
            raise FlytuneError(
                f"--exclude leaves no candidate for {task.shape} at {task.modules[0]}"
            )


def _clear(work: Path, fresh: bool, journal: Journal) -> None:
    """Remove what a killed build left half made; all of it for a fresh one."""
    for path in work.glob(f"{PACKING}*"):
        shutil.rmtree(path, ignore_errors=True)
    if fresh:
        journal.clear()
        (work / _LISTS).unlink(missing_ok=True)
        shutil.rmtree(work / "built", ignore_errors=True)


def _enumerate(
    plan: Plan, options: BuildOptions, start: StartFarm, progress: Progress
) -> Enumeration:
    """Return the lists that the program offers; kept for a build that goes on.

    While they are made the workers start, which takes them as long.
    """
    if isinstance(plan.program, CommandSpec):
        # What it does may have changed since: it is asked in each build.
        what = "vLLM's engine" if isinstance(plan.program, VllmSpec) else "the command"
        progress.say(f"enumerate: running {what} to list its candidates")
        start().warm()
        return list_command(plan, plan.program, options.space)
    path = plan.work / _LISTS
    if not path.exists():
        what = "the program" if plan.program is not None else "each shape by itself"
        progress.say(f"enumerate: lowering {what} to list its candidates")
        with tempfile.TemporaryDirectory(prefix="flytune-enumerate-") as directory:
            absent = _absent(plan)
            request: dict[str, Any] = {
                "policy": plan.policy.to_json(),
                "search": options.space,
                "profile": None if absent is None else absent.to_json(),
                "shapes": [shape.to_row() for shape in plan.shapes],
            }
            if plan.program is not None:
                request["program"] = plan.program.to_json()
            # The C++ templates need the instruction set's name, not its trial builds.
            more = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
            if absent is not None:
                more |= stand_in_environment(absent)
            env = clean_environment(plan.policy, Path(directory), **more)
            start().warm()
            run_module(PROBE, request, path, env, what="enumeration")
    elif (open_to := exposed(str(plan.work))) is not None:
        # A pickle is code, and so are the kernels beside it.
        raise FlytuneError(
            f"work directory can be written by other users: {open_to}",
            hint="make it your own and chmod go-w, or name another --work",
        )
    found: Enumeration = pickle.loads(path.read_bytes())
    return found


def _absent(plan: Plan) -> DeviceProfile | None:
    """Return the profile of an accelerator that this host lacks."""
    if plan.profile is None:
        return None
    live = live_profile()
    here = live is not None and live.is_same(plan.profile)
    return None if here else plan.profile


def _report_coverage(coverage: Coverage, planned: int, progress: Progress) -> None:
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
