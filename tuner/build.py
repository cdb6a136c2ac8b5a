"""`flytune build`: the pipeline, top to bottom."""

import contextlib
import functools
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flytune.caches.bundle import Bundle
from flytune.caches.key_files import load_private
from flytune.caches.keyring import OWN_NAME, keys_folder, own_key
from flytune.caches.recorded import read_recorded
from flytune.caches.target import Target
from flytune.caches.target_env import check_target_env
from flytune.caches.vllm_program import VllmSpec
from flytune.shapes.errors import FlytuneError
from flytune.tuner.account import Account
from flytune.tuner.bake import bake
from flytune.tuner.budget import Allowance, Meter, check_budget
from flytune.tuner.candidate import Enumeration
from flytune.tuner.compile_only import compile_only
from flytune.tuner.decision import Decision, timings
from flytune.tuner.enumeration import LISTS, enumerate_lists
from flytune.tuner.going_on import check_place
from flytune.tuner.journal import JOURNAL, Journal
from flytune.tuner.older import OlderBundle
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan, make_plan
from flytune.tuner.plan_words import say_coverage, say_plan
from flytune.tuner.progress import Progress
from flytune.tuner.publish import PACKING, Built, Made, publish
from flytune.tuner.publish_compiled import publish_compiled
from flytune.tuner.ray_address import check_address
from flytune.tuner.search import SMART, search
from flytune.tuner.shared_lists import Sharing
from flytune.tuner.tasks import check_excluded, join
from flytune.tuner.unchanged import publish_unchanged
from flytune.tuner.work import StartFarm, farm_for

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class Prepared:
    """A build that may begin."""

    options: BuildOptions
    plan: Plan
    older: OlderBundle | None
    """The older bundle that is named."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """A build that needs no workers any more, but is to be baked and published."""

    made: Made
    decisions: tuple[Decision, ...]


def build(options: BuildOptions, progress: Progress) -> Built:
    """Tune a model's GEMMs and publish the verified bundle at `options.out`.

    Raises:
        FlytuneError: the build cannot start or end well; what was finished is kept in
            `options.work` and the same command goes on from there.
    """
    progress.begin("plan")
    meter = Meter()
    prepared = prepare(options)
    plan = prepared.plan
    say_plan(plan, options, progress)
    account = open_account(prepared, meter, progress.elapsed_s)
    account.say(progress)
    with Journal(plan.work / JOURNAL) as journal:
        with contextlib.ExitStack() as ray:
            start = functools.cache(lambda: ray.enter_context(farm_for(plan, options)))
            tuned = tune(prepared, journal, start, progress, account=account)
        # Without Ray: a bake has the host to itself.
        return tuned if isinstance(tuned, Built) else finish(tuned, progress)


def prepare(options: BuildOptions) -> Prepared:
    """Plan a build, and refuse at once what it would find out after minutes.

    Raises:
        FlytuneError: it cannot start, or could not end well.
    """
    _check_named(options)
    plan = make_plan(options)
    if not options.keep:
        check_place(plan, options)
    older = None
    if options.from_bundle is not None:
        older = OlderBundle(options.from_bundle, plan.target, options.trust)
    return Prepared(options, plan, older)


def tune(
    prepared: Prepared,
    journal: Journal,
    start: StartFarm,
    progress: Progress,
    sharing: Sharing | None = None,
    account: Account | None = None,
) -> Tuned | Built:
    """List, build and time the candidates, and decide.

    Args:
        start: Called where something is to be built or timed.
        sharing: What other builds of a fleet have decided and compiled.
        account: What the build may spend, and what becomes of it.

    A bundle is returned where nothing is to be baked.

    Raises:
        FlytuneError: the build cannot go on.
    """
    options, plan, older = prepared.options, prepared.plan, prepared.older
    keys = signing_keys(options, progress)
    if older is not None:
        older.say(progress)
    _clear(plan.work, options.fresh, journal)
    if sharing is not None:
        sharing.open_store(plan.work)
    if older is not None:
        built = publish_unchanged(plan, options, older, keys, progress)
        if built is not None:
            return built
    progress.begin("enumerate")
    found = enumerate_lists(plan, options, start, progress)
    _check_keys(plan, found, options, older, progress)
    coverage = join(plan.shapes, found.lists, found.unlisted)
    say_coverage(coverage, len(plan.shapes), progress)
    check_excluded(coverage, options.exclude)
    made = Made(plan, options, found, coverage, keys)
    _take_kernels(made, older, sharing, progress)
    progress.begin("build" if options.runs_nothing else "tune")
    if options.runs_nothing:
        compiled = compile_only(made, start, progress)
        return publish_compiled(made, compiled, progress)
    same = () if older is None else older.same
    upgrade = None if older is None else older.upgrade
    decisions, ceilings = search(
        *(plan, coverage.tasks, options, journal, same, start, progress),
        upgrade=upgrade,
        sharing=sharing,
        account=account,
    )
    made = replace(made, ceilings=ceilings or (older.ceilings if older else {}))
    made = replace(made, account=account)
    return Tuned(made, decisions)


def _take_kernels(
    made: Made,
    older: OlderBundle | None,
    sharing: Sharing | None,
    progress: Progress,
) -> None:
    """Take what was compiled elsewhere, so that it is not compiled here."""
    built = made.plan.work / "built"
    if older is not None and (taken := older.take_kernels(built)):
        progress.say(f"build: {taken} candidates compiled by an earlier build")
    if sharing is None:
        return
    every = made.options.runs_nothing
    if taken := sharing.take_kernels(made.coverage.tasks, built, every=every):
        progress.say(f"build: {taken} candidates compiled for other models")


def finish(tuned: Tuned, progress: Progress) -> Built:
    """Bake the decisions, verify what was baked, and publish the bundle.

    Raises:
        FlytuneError: the program fails, or the output cannot be written.
    """
    made = tuned.made
    plan, options = made.plan, made.options
    progress.begin("bake")
    baked = bake(plan, timings(tuned.decisions), made.found.system, options, progress)
    decisions = tuple(decision.as_baked(baked.taken) for decision in tuned.decisions)
    if isinstance(plan.program, VllmSpec):
        program = plan.program.after_bake(baked.cache_dir)
        made = replace(made, plan=replace(plan, program=program))
    built = publish(made, decisions, baked, progress)
    if made.account is not None:
        made.account.keep(progress)
    return built


def _check_named(options: BuildOptions) -> None:
    """Refuse at once what a build would find out after minutes.

    Raises:
        FlytuneError: a file that is named is not there, or nothing answers for Ray.
    """
    if options.search == SMART and options.runs_nothing:
        raise FlytuneError(
            "--search smart goes by times, and nothing is timed in this build",
            hint="--search default or exhaustive",
        )
    if options.budget is not None and options.runs_nothing:
        raise FlytuneError(
            "--budget is of tuning, and nothing is timed in this build",
            hint="leave out --budget, or --compile-only and --runner",
        )
    if options.sign and options.key is not None:
        load_private(options.key)
    if options.from_bundle is not None:
        Bundle.open(options.from_bundle)
    if options.recorded is not None:
        read_recorded(options.recorded)
    if options.ray is not None:
        check_address(options.ray)


def open_account(
    prepared: Prepared,
    meter: Meter,
    planned_s: float,
    met: set[object] | None = None,
) -> Account:
    """Return a build's account, which knows what the build is expected to take.

    Args:
        meter: Counts from the start of the command.
        planned_s: What the plan has taken.
        met: As `Account` takes it.

    Raises:
        FlytuneError: the budget is of what the build does not take.
    """
    options, plan = prepared.options, prepared.plan
    given = (options.budget, options.gpu_hour_price)
    check_budget(*given, accelerator=plan.profile is not None)
    account = Account(plan, options, Allowance(*given, meter), planned_s, met)
    account.allowance.reserve_s = account.first.after_tuning_s
    return account


def signing_keys(
    options: BuildOptions, progress: Progress
) -> tuple["Ed25519PrivateKey", ...]:
    """Return the keys that sign the bundle; the first build makes the user's own."""
    if not options.sign:
        return ()
    if options.key is not None:
        return (load_private(options.key),)
    path = keys_folder() / OWN_NAME
    if not path.exists():
        progress.say(f"sign: making your own key, trusted on this machine: {path}")
    return (own_key(),)


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


def _clear(work: Path, fresh: bool, journal: Journal) -> None:
    """Remove what a killed build left half made; all of it for a fresh one."""
    for path in work.glob(f"{PACKING}*"):
        shutil.rmtree(path, ignore_errors=True)
    if fresh:
        journal.clear()
        (work / LISTS).unlink(missing_ok=True)
        shutil.rmtree(work / "built", ignore_errors=True)
