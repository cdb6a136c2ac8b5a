"""An older bundle of this very build and environment: proved once more, and published.

Listing, tuning and baking would make the same again, and the files were verified where
they were made. What no part of a target holds may yet differ, transformers' own code
first: so the program is run on them, each piece once at its smallest and at its largest
size. Where that compiles or tunes anything the build goes the long way.
"""

import datetime
import importlib.metadata
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flytune.caches.manifest import Manifest, canonical_json
from flytune.caches.provenance import provenance
from flytune.caches.verify import verify_directory
from flytune.tuner.build_identity import build_identity
from flytune.tuner.going_on import publish_at
from flytune.tuner.older import OlderBundle
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.publish import PACKING, Built, model_row, with_stages
from flytune.tuner.quarantine import NAME, Quarantine
from flytune.tuner.timed_device import device_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def publish_unchanged(
    plan: Plan,
    options: BuildOptions,
    older: OlderBundle,
    keys: tuple["Ed25519PrivateKey", ...],
    progress: Progress,
) -> Built | None:
    """Verify the older bundle's files here, and publish them where they hit.

    Returns:
        None where the older bundle is of something else, or does not hit.

    Raises:
        FlytuneError: its files are corrupt, or the output cannot be written.
    """
    if older.changed:
        return None
    if differs := next(_differences(plan, options, older), ""):
        progress.say(f"from: the older bundle is taken in parts: {differs}")
        return None
    progress.begin("verify")
    sizes = _extremes(plan.policy.tokens)
    progress.say(
        "from: nothing has changed; verify: running the program on its files"
        + (f" at {' and '.join(map(str, sizes))} tokens" if sizes else "")
    )
    with tempfile.TemporaryDirectory(prefix=PACKING, dir=plan.work) as directory:
        staging, trial = Path(directory) / "bundle", Path(directory) / "trial"
        older.bundle.place(staging)
        shutil.copytree(staging, trial)
        manifest = replace(
            older.bundle.manifest,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            flytune=importlib.metadata.version("flytune"),
            provenance={
                **older.bundle.manifest.provenance,
                **provenance(options.command),
                "build": build_identity(plan, options),
                # Of what took long then nothing was done now.
                **dict.fromkeys(("estimate", "budget")),
            },
            files={},
        )
        with (plan.work / "verify.log").open("wb") as output:
            verdict = verify_directory(trial, _brief(manifest), output, once=True)
        if not verdict.ok(strict=False):
            progress.say(f"from: it does not hit any more: {verdict.failures[0]}")
            return None
        # What was run at all sizes is on record; this is what was run here.
        verify = {**(manifest.verify or {}), "again": verdict.to_json()}
        manifest = with_stages(replace(manifest, verify=verify), progress)
        publish_at(staging, manifest, plan, options, keys)
    return Built(plan.out, manifest, verdict)


def _brief(manifest: Manifest) -> Manifest:
    """Return a manifest whose program is called with its extreme sizes alone."""
    program, policy = dict(manifest.program), dict(manifest.policy)
    for row, name in ((policy, "tokens"), (program, "prefill"), (program, "decode")):
        if row.get(name):
            row[name] = _extremes(row[name])
    return replace(manifest, program=program, policy=policy)


def _extremes(sizes: Iterable[int]) -> list[int]:
    known = sorted(sizes)
    return sorted({known[0], known[-1]}) if known else []


def _differences(
    plan: Plan, options: BuildOptions, older: OlderBundle
) -> Iterator[str]:
    """Yield in what the older bundle is not what this build would make."""
    manifest = older.bundle.manifest
    if options.runs_nothing or plan.program is None or manifest.compiled_only:
        yield "nothing is baked"
        return
    if options.exclude or Quarantine(options.work / NAME, device_of(plan).name).names:
        yield "candidates are kept out"
    for name, old, new in (
        ("model", manifest.model, model_row(plan, options)),
        ("program", manifest.program, plan.program.to_json()),
        ("policy", manifest.policy, plan.policy.to_json()),
        ("search", manifest.coverage.get("search"), options.search),
        ("planned GEMMs", manifest.coverage.get("planned"), len(plan.shapes)),
        ("flytune", manifest.flytune, importlib.metadata.version("flytune")),
        ("software", manifest.software, "serving"),
        ("verified", (manifest.verify or {}).get("ok"), True),
        ("settled", manifest.bake.get("settled"), True),
        ("over budget", manifest.coverage.get("over_budget") or [], []),
    ):
        if _json(old) != _json(new):
            yield f"`{name}` differs"


def _json(value: Any) -> bytes:
    """Return a value as a manifest holds it, where lists stand for tuples."""
    return canonical_json(value)
