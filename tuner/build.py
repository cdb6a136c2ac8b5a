"""`flytune build`: the pipeline, top to bottom."""

import datetime
import hashlib
import importlib.metadata
import pickle
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flytune.caches.bundle import Bundle
from flytune.caches.child import clean_environment, run_module
from flytune.caches.inductor import system_info
from flytune.caches.keys import KEYS_NAME, write_keys
from flytune.caches.manifest import Manifest
from flytune.caches.packing import pack
from flytune.caches.placing import CACHES
from flytune.caches.records import TuningRecord, read_records, write_records
from flytune.caches.target import PartStatus, Target, compare
from flytune.caches.verify import Verdict, verify_directory
from flytune.shapes.errors import FlytuneError
from flytune.tuner.bake import Bake, bake
from flytune.tuner.candidate import CandidateList
from flytune.tuner.decision import Decision, timings
from flytune.tuner.journal import Journal
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import GIB, Plan, make_plan
from flytune.tuner.progress import Progress
from flytune.tuner.search import cpu_device, search
from flytune.tuner.tasks import Coverage, join

RECORDS_NAME = "records.parquet"
PROBE = "flytune.tuner.probe"
_LISTS = "lists.pickle"
_PACKING = ".flytune-pack-"


@dataclass(frozen=True, slots=True)
class Built:
    """What a build made."""

    out: Path
    manifest: Manifest
    verdict: Verdict


def build(options: BuildOptions, progress: Progress) -> Built:
    """Tune a model's GEMMs and publish the verified bundle at `options.out`.

    Raises:
        FlytuneError: the build cannot start or end well; what was finished is kept in
            `options.work` and the same command goes on from there.
    """
    plan = make_plan(options)
    progress.say(
        f"plan: {plan.model.name}, {len(plan.shapes)} GEMMs, {plan.policy.name} "
        f"policy, about {plan.needed_bytes / GIB:.1f} GiB; kept in {plan.work}"
    )
    older = _older_records(options.from_bundle, plan)
    with Journal(plan.work / "journal.jsonl") as journal:
        _clear(plan.work, options.fresh, journal)
        coverage = join(plan.shapes, _enumerate(plan, progress))
        _report_coverage(coverage, progress)
        decisions = search(plan, coverage.tasks, options, journal, older, progress)
        baked = bake(
            plan, timings(decisions), system_info(), options.bake_passes, progress
        )
        decisions = tuple(decision.as_baked(baked.chosen) for decision in decisions)
        return _publish(plan, coverage, decisions, baked, options, progress)


def _clear(work: Path, fresh: bool, journal: Journal) -> None:
    """Remove what a killed build left half made; all of it for a fresh one."""
    for path in work.glob(f"{_PACKING}*"):
        shutil.rmtree(path, ignore_errors=True)
    if fresh:
        journal.clear()
        (work / _LISTS).unlink(missing_ok=True)
        shutil.rmtree(work / "built", ignore_errors=True)


def _enumerate(plan: Plan, progress: Progress) -> tuple[CandidateList, ...]:
    """Return the lists that the program offers; kept for a build that goes on."""
    path = plan.work / _LISTS
    if not path.exists():
        progress.say("enumerate: lowering the program to list its candidates")
        with tempfile.TemporaryDirectory(prefix="flytune-enumerate-") as directory:
            request = {
                "program": plan.program.to_json(),
                "policy": plan.policy.to_json(),
            }
            # The C++ templates need the instruction set's name, not its trial builds.
            env = clean_environment(
                plan.policy, Path(directory), TORCHINDUCTOR_VEC_ISA_OK="1"
            )
            run_module(PROBE, request, path, env, what="enumeration")
    lists: tuple[CandidateList, ...] = pickle.loads(path.read_bytes())
    return lists


def _report_coverage(coverage: Coverage, progress: Progress) -> None:
    tasks = coverage.tasks
    candidates = sum(len(t.offered.candidates) for t in tasks)
    progress.say(f"enumerate: {len(tasks)} lists, {candidates} candidates")
    for shape in coverage.missing:
        progress.say(f"enumerate: no list: {shape} at {shape.module}")
    for offered in coverage.unplanned:
        progress.say(f"enumerate: not planned: {offered.op} in {offered.piece}")


def _older_records(path: Path | None, plan: Plan) -> tuple[TuningRecord, ...]:
    """Return the records of an older bundle for this very target.

    Raises:
        FlytuneError: it is no bundle, or is for another target.
    """
    if path is None:
        return ()
    older = Bundle.open(path)
    built = Target.from_json(older.manifest.target)
    parts = compare(built, plan.target)
    wrong = [str(p) for p in parts if p.status is PartStatus.MISS]
    if wrong:
        raise FlytuneError(f"older bundle is for another target: {wrong[0]}")
    if RECORDS_NAME not in older.manifest.files:
        raise FlytuneError(f"older bundle has no records: {path}")
    with tempfile.TemporaryDirectory(prefix="flytune-from-") as directory:
        placed = Path(directory) / "bundle"
        older.place(placed, only=[RECORDS_NAME])
        return read_records(placed / RECORDS_NAME)


def _publish(
    plan: Plan,
    coverage: Coverage,
    decisions: tuple[Decision, ...],
    baked: Bake,
    options: BuildOptions,
    progress: Progress,
) -> Built:
    """Stage 7: pack the bake, verify the packed files, and publish by rename."""
    progress.say("verify: running the program on the packed files")
    with tempfile.TemporaryDirectory(prefix=_PACKING, dir=plan.work) as directory:
        staging, trial = Path(directory) / "bundle", Path(directory) / "trial"
        _stage(staging, plan, decisions, baked)
        manifest = _manifest(plan, coverage, decisions, baked, options)
        shutil.copytree(staging, trial)
        verdict = verify_directory(trial, manifest)
        manifest = replace(manifest, verify=verdict.to_json())
        pack(staging, manifest, options.out)
    return Built(options.out, manifest, verdict)


def _stage(
    staging: Path, plan: Plan, decisions: tuple[Decision, ...], baked: Bake
) -> None:
    frozen = bool(plan.policy.inductor.get("freezing"))

    def left_out(_: str, names: list[str]) -> list[str]:
        # Locks say nothing to another host; torch writes a frozen graph's wrapper
        # anew in each process, under a name of its own.
        endings = (".lock", ".py") if frozen else (".lock",)
        return [n for n in names if n == "locks" or n.endswith(endings)]

    shutil.copytree(baked.cache_dir, staging / CACHES, ignore=left_out)
    write_keys(baked.keys, staging / KEYS_NAME)
    records = [record for decision in decisions for record in decision.records]
    write_records(records, staging / RECORDS_NAME)


def _manifest(
    plan: Plan,
    coverage: Coverage,
    decisions: tuple[Decision, ...],
    baked: Bake,
    options: BuildOptions,
) -> Manifest:
    target = Target.here(threads=options.threads, torch_key=baked.torch_key)
    chosen = [d for d in decisions if d.was_choice]
    return Manifest(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        flytune=importlib.metadata.version("flytune"),
        model={
            "name": plan.model.name,
            "architecture": plan.model.architecture,
            "config_sha256": hashlib.sha256(plan.model.raw.encode()).hexdigest(),
        },
        program=plan.program.to_json(),
        policy=plan.policy.to_json(),
        inductor_config=baked.inductor_config,
        target=target.to_json(),
        software="serving",
        timed_on=cpu_device(plan).name if chosen else None,
        coverage=_coverage_row(plan, coverage, decisions),
        winners=tuple(_winner_row(decision) for decision in decisions),
        bake=baked.to_json(),
    )


def _coverage_row(
    plan: Plan, coverage: Coverage, decisions: tuple[Decision, ...]
) -> Mapping[str, Any]:
    return {
        "planned": len(plan.shapes),
        "lists": len(decisions),
        "tuned": sum(d.was_choice and d.was_timed for d in decisions),
        "untimed": [
            f"{d.task.shape} at {d.task.modules[0]}: {d.winner.reason}"
            for d in decisions
            if d.was_choice and not d.was_timed
        ],
        "without_choice": sum(not d.was_choice for d in decisions),
        "missing": [f"{shape} at {shape.module}" for shape in coverage.missing],
        "unplanned": [f"{o.op} {o.inputs_key}" for o in coverage.unplanned],
    }


def _winner_row(decision: Decision) -> Mapping[str, Any]:
    winner, task = decision.winner, decision.task
    return {
        "shape": str(task.shape),
        "modules": list(task.modules),
        "op": task.offered.op,
        "inputs_key": task.offered.inputs_key,
        "backend": winner.backend,
        "template": winner.template,
        "choice_hash": winner.choice_hash,
        "median_us": winner.median_us,
        "candidates": len(decision.records),
    }
