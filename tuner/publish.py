"""Stage 7: pack what was made, verify the packed files, and publish by rename."""

import datetime
import hashlib
import importlib.metadata
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flytune.caches.directories import VLLM_DIR
from flytune.caches.expected import CACHES
from flytune.caches.keys import KEYS_NAME, write_keys
from flytune.caches.manifest import Manifest
from flytune.caches.provenance import provenance
from flytune.caches.records import RECORDS_NAME, TuningRecord, write_records
from flytune.caches.target import Target
from flytune.caches.verdict import Verdict
from flytune.caches.verify import verify_directory
from flytune.shapes.reach import is_reached, unreached
from flytune.tuner.bake import Bake
from flytune.tuner.build_identity import build_identity
from flytune.tuner.candidate import Enumeration
from flytune.tuner.decision import Decision
from flytune.tuner.going_on import publish_at
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.tasks import Coverage
from flytune.tuner.timed_device import device_of
from flytune.tuner.unreached import is_cut

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from flytune.tuner.account import Account

KERNELS = "kernels"
"""Folder of a bundle that was only compiled: what `BuiltKernels` holds."""
PACKING = ".flytune-pack-"
# What Triton keeps of its way to a kernel, and never loads.
_STAGES = (".ttir", ".ttgir", ".llir", ".ptx", ".amdgcn", ".source")
# On a CPU a graph holds the source of its wrapper and of its kernels, and torch writes
# both anew where they are absent; a frozen one's wrapper it writes in each process.
_SOURCES: Mapping[bool, tuple[str, ...]] = {True: (".py", ".cpp"), False: ()}


@dataclass(frozen=True, slots=True)
class Built:
    """What a build made."""

    out: Path
    manifest: Manifest
    verdict: Verdict | None
    """None where there is nothing that could be found without the device."""

    @property
    def ok(self) -> bool:
        """Whether it is of use: a bundle that hits, or kernels or decisions for one."""
        hits = self.verdict is None or self.verdict.ok(strict=False)
        coverage = self.manifest.coverage
        if self.manifest.compiled_only:
            # Recorded times may let the library win all, and nothing is compiled.
            return hits and bool(coverage["compiled"] or coverage["tuned"])
        return hits


@dataclass(frozen=True, slots=True)
class Made:
    """What a build knows when it publishes."""

    plan: Plan
    options: BuildOptions
    found: Enumeration
    coverage: Coverage
    keys: tuple["Ed25519PrivateKey", ...] = ()
    """Those that sign the bundle."""
    ceilings: Mapping[str, Any] = field(default_factory=dict)
    """What the device reaches at most, as `measure_ceilings`."""
    account: "Account | None" = None
    """What the build was expected to take; None where nothing was timed."""


def publish(
    made: Made, decisions: tuple[Decision, ...], baked: Bake, progress: Progress
) -> Built:
    """Pack the bake, verify the packed files, and publish."""
    progress.begin("verify")
    progress.say("verify: running the program on the packed files")
    work, out = made.plan.work, made.plan.out
    with tempfile.TemporaryDirectory(prefix=PACKING, dir=work) as directory:
        staging, trial = Path(directory) / "bundle", Path(directory) / "trial"
        _stage(staging, made.plan, decisions, baked)
        manifest = manifest_of(made, decisions, baked)
        shutil.copytree(staging, trial)
        with (work / "verify.log").open("wb") as output:
            verdict = verify_directory(trial, manifest, output)
        manifest = with_stages(replace(manifest, verify=verdict.to_json()), progress)
        if made.account is not None:
            closed = made.account.closed(progress)
            both = {**manifest.provenance, **closed}
            manifest = replace(manifest, provenance=both)
        publish_at(staging, manifest, made.plan, made.options, made.keys)
    return Built(out, manifest, verdict)


def _stage(
    staging: Path, plan: Plan, decisions: tuple[Decision, ...], baked: Bake
) -> None:
    def left_out(folder: str, names: list[str]) -> list[str]:
        # Locks say nothing to another host.
        endings = (".lock", *_STAGES, *_SOURCES[plan.policy.device == "cpu"])
        # vLLM looks its own files up by what they hold.
        if Path(folder).is_relative_to(baked.cache_dir / VLLM_DIR):
            endings = (".lock",)
        return [n for n in names if n == "locks" or n.endswith(endings)]

    shutil.copytree(baked.cache_dir, staging / CACHES, ignore=left_out)
    write_keys(baked.keys, staging / KEYS_NAME)
    records: list[TuningRecord] = []
    for decision in decisions:
        records += decision.records
    write_records(records, staging / RECORDS_NAME)


def manifest_of(
    made: Made, decisions: Sequence[Decision], baked: Bake | None
) -> Manifest:
    """Return the manifest of a build's bundle, not yet verified; None was not baked."""
    plan, options, found = made.plan, made.options, made.found
    target = Target.here(
        threads=options.threads,
        torch_key=found.torch_key,
        triton_key=found.triton_key,
        hardware=plan.target.hardware,
    )
    was_timed = any(d.was_choice and d.was_timed for d in decisions)
    # Without a bake nothing shows that this environment is the one that serves.
    vouched = baked is not None or options.target_env is not None
    return Manifest(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        flytune=importlib.metadata.version("flytune"),
        model=model_row(plan, options),
        program={"kind": "none"} if plan.program is None else plan.program.to_json(),
        policy=plan.policy.to_json(),
        inductor_config={} if baked is None else baked.inductor_config,
        target=target.to_json(),
        software="serving" if vouched else "stand-in",
        timed_on=device_of(plan).name if was_timed else None,
        coverage=_coverage_row(made, decisions),
        winners=tuple(_winner_row(decision) for decision in decisions),
        bake=NOT_BAKED if baked is None else baked.to_json(),
        provenance={
            **provenance(options.command),
            "build": build_identity(plan, options),
            "ceilings": dict(made.ceilings),
        },
    )


def model_row(plan: Plan, options: BuildOptions) -> Mapping[str, Any]:
    """Return the manifest's `model`."""
    # A file of shapes says it in each row, and in all the same.
    whose = options if options.by_hand is None else plan.shapes[0]
    return {
        "name": plan.model.name,
        "architecture": plan.model.architecture,
        "config_sha256": hashlib.sha256(plan.model.raw.encode()).hexdigest(),
        "tp": whose.tp,
        "ep": whose.ep,
        "engine": whose.engine,
    }


def with_stages(manifest: Manifest, progress: Progress) -> Manifest:
    """Return a manifest that says how many seconds each stage of its build took."""
    stages = [list(part) for part in progress.parts()]
    return replace(manifest, provenance={**manifest.provenance, "stages": stages})


NOT_BAKED: Mapping[str, Any] = {"passes": [], "settled": False, "remaining": {}}


def _coverage_row(made: Made, decisions: Sequence[Decision]) -> Mapping[str, Any]:
    coverage = made.coverage
    return {
        "enumerated": "isolated" if made.plan.program is None else "program",
        "search": made.options.search,
        "planned": len(made.plan.shapes),
        "reached": sum(map(is_reached, made.plan.shapes)),
        "unreached": unreached((*made.plan.shapes, *made.plan.left_out)),
        "lists": len(coverage.tasks),
        "tuned": sum(d.was_choice and d.was_timed for d in decisions),
        "untimed": [
            f"{d.task.shape} at {d.task.modules[0]}: {d.winner.reason}"
            for d in decisions
            if d.was_choice and not d.was_timed and not is_cut(d)
        ],
        "over_budget": [
            f"{d.task.shape} at {d.task.modules[0]}" for d in decisions if is_cut(d)
        ],
        "without_choice": sum(not d.was_choice for d in decisions),
        "missing": {why: list(some) for why, some in coverage.unlisted.items()},
        # Of a command alone nothing is planned.
        "unplanned": [
            f"{o.op} {o.inputs_key}" for o in coverage.unplanned if made.plan.shapes
        ],
        "declined": {why: list(some) for why, some in coverage.declined.items()},
    }


def _winner_row(decision: Decision) -> Mapping[str, Any]:
    winner, task = decision.winner, decision.task
    return {
        "shape": str(task.shape),
        "modules": list(task.modules),
        "counts": list(task.counts),
        "op": task.offered.op,
        "inputs_key": task.offered.inputs_key,
        "backend": winner.backend,
        "template": winner.template,
        "choice_hash": winner.choice_hash,
        "median_us": winner.median_us,
        "candidates": len(decision.records),
    }
