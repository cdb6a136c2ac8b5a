"""What names a build: the same one has the same name again."""

import hashlib
import json

from flytune.caches.bundle import Bundle
from flytune.caches.several import parts_of
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan


def build_identity(plan: Plan, options: BuildOptions) -> str:
    """Return a name of what a build makes, whenever and wherever it writes it.

    It is the name of its directory, which holds program, policy, target, search and
    versions, and a digest of what the directory may be used again for.
    """
    recorded = options.recorded
    # A file of shapes says it in each row, and in all the same.
    whose = options if options.by_hand is None else plan.shapes[0]
    rest = {
        "ranks": [whose.tp, whose.ep, whose.engine],
        "model": hashlib.sha256(plan.model.raw.encode()).hexdigest(),
        "planned": len(plan.shapes),
        "ops": options.ops,
        "exclude": sorted(options.exclude),
        "compile_only": options.compile_only,
        "recorded": recorded and hashlib.sha256(recorded.read_bytes()).hexdigest(),
    }
    text = json.dumps(rest, sort_keys=True)
    return f"{plan.work.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def builds_of(bundle: Bundle) -> set[str | None]:
    """Return the names of the builds that made a bundle, or what it was merged of.

    None is of what says no name.

    Raises:
        FlytuneError: the program of a merged bundle is malformed.
    """
    return {part["provenance"].get("build") for part in parts_of(bundle.manifest)}
