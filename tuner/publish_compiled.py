"""Pack what was compiled for a device that is not here: nothing of it was run."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flytune.caches.expected import CACHES
from flytune.caches.flydsl_cache import Kernel
from flytune.caches.packing import pack
from flytune.caches.records import RECORDS_NAME, TuningRecord, write_records
from flytune.caches.verify_kernels import ASKED_NAME, looked_up, write_asked
from flytune.tuner.built_kernels import BuiltKernels
from flytune.tuner.candidate import FLYDSL, BuildResult
from flytune.tuner.decision import Decision, untimed_records
from flytune.tuner.eager_flydsl import EagerBuild
from flytune.tuner.flydsl_builder import kernel_of
from flytune.tuner.progress import Progress
from flytune.tuner.publish import (
    KERNELS,
    NOT_BAKED,
    PACKING,
    Built,
    Made,
    manifest_of,
    with_stages,
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a build made of its candidates without the device."""

    builds: Mapping[str, BuildResult]
    """By choice hash."""
    tools: Mapping[str, str]
    """What linked FlyDSL's kernels beside the compilers themselves, with digests."""
    decisions: tuple[Decision, ...] = ()
    """By times that others recorded, if there are any."""
    eager: tuple[EagerBuild, ...] = ()
    """Kernels that torch runs outside of any graph."""


def publish_compiled(made: Made, compiled: Compiled, progress: Progress) -> Built:
    """Pack the kernels of every candidate, for a build where the device is.

    Nothing was timed or run here, and the manifest says so.
    """
    work, out = made.plan.work, made.plan.out
    with tempfile.TemporaryDirectory(prefix=PACKING, dir=work) as directory:
        staging = Path(directory) / "bundle"
        staging.mkdir()
        _stage(staging, made, compiled)
        records = _records(made, compiled)
        write_records(records, staging / RECORDS_NAME)
        manifest = replace(manifest_of(made, compiled.decisions, None), timed_on=None)
        verdict = None
        if (staging / ASKED_NAME).exists():
            trial = Path(directory) / "trial"
            shutil.copytree(staging, trial)
            verdict = looked_up(trial, str(made.plan.target.hardware["arch"]))
        manifest = replace(
            manifest,
            coverage={**manifest.coverage, **_counts(records, compiled)},
            bake={**NOT_BAKED, "tools": dict(compiled.tools)},
            verify=None if verdict is None else verdict.to_json(),
        )
        manifest = with_stages(manifest, progress)
        pack(staging, manifest, out, keys=made.keys)
    return Built(out, manifest, verdict)


def _records(made: Made, compiled: Compiled) -> list[TuningRecord]:
    if compiled.decisions:
        return [record for one in compiled.decisions for record in one.records]
    return [
        record
        for task in made.coverage.tasks
        for record in untimed_records(task, compiled.builds)
    ]


def _counts(records: Sequence[TuningRecord], compiled: Compiled) -> dict[str, Any]:
    """Return how many candidates became what: in all, and by backend, op and type."""
    kinds: dict[str, Counter[str]] = {}
    for record in records:
        kind = f"{record.backend} {record.op} {record.scaling or record.a_dtype}"
        kinds.setdefault(kind, Counter())[str(record.status)] += 1
    return {
        "candidates": dict(Counter(str(record.status) for record in records)),
        "by_kind": {kind: dict(kinds[kind]) for kind in sorted(kinds)},
        "compiled": sum(1 for build in compiled.builds.values() if build.files),
        "sources": dict(Counter(record.source for record in records if record.source)),
        "eager": {
            one.kernel.name: one.result.reason or str(one.result.status)
            for one in compiled.eager
        },
    }


def _stage(staging: Path, made: Made, compiled: Compiled) -> None:
    """Put each kernel where a later build, and FlyDSL itself, look for it."""
    kernels = BuiltKernels(staging / KERNELS)
    asked: dict[str, Kernel] = {}
    for task in made.coverage.tasks:
        for candidate in task.offered.candidates:
            build = compiled.builds.get(candidate.choice_hash)
            key = candidate.build_key or candidate.choice_hash
            if build is None or not build.files or key in asked:
                continue
            kernels.keep(build, candidate.build_key)
            if candidate.backend == FLYDSL:
                asked[key] = kernel_of(candidate)
                _write(build.files, staging / CACHES)
    for one in compiled.eager:
        if one.result.files:
            asked[one.kernel.name] = one.kernel
            _write(one.result.files, staging / CACHES)
    if asked:
        write_asked(asked.values(), staging / ASKED_NAME)


def _write(files: Mapping[str, bytes], root: Path) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
