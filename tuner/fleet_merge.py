"""The bundle of all models of a fleet: those of its bundles that go together."""

import os
from collections.abc import Sequence, Set
from pathlib import Path

from flytune.caches.bundle import Bundle
from flytune.caches.merge import merge
from flytune.caches.merge_manifest import check_together, merged_from
from flytune.caches.provenance import provenance
from flytune.caches.scratch import beside
from flytune.caches.target import Target
from flytune.caches.words import counted
from flytune.shapes.errors import FlytuneError, about
from flytune.tuner.build import signing_keys
from flytune.tuner.build_identity import builds_of
from flytune.tuner.options import BuildOptions
from flytune.tuner.progress import Progress

_Named = tuple[str, Bundle]
"""A bundle, and the name of its model."""


def merged_out(folder: Path, name: str, target: Target) -> Path:
    """Return where a merged bundle for a target will be."""
    return folder / f"{name}.{target.slug}.tar.zst"


def refuse_foreign(out: Path, builds: Set[str], digests: Set[str]) -> None:
    """Refuse an output that was merged of what other builds than a fleet's have made.

    One that was merged of some of them is the fleet's too, and is made anew: what it
    was merged of may have given way since to more of the same build.

    Args:
        builds: The `build_identity` of each model.
        digests: Of the bundles that they have. What models of one program and policy
            are merged to names no build.

    Raises:
        FlytuneError: it is of others, or no merged bundle at all.
    """
    if not out.exists() and not out.is_symlink():
        return
    with about(out):
        bundle = Bundle.open(out)
        origins, made_by = set(merged_from(bundle)), builds_of(bundle)
    if not origins or not (made_by <= builds or origins <= digests):
        raise FlytuneError(
            f"output exists, and was not merged of this fleet's bundles: {out}",
            hint="remove it, or give another --out",
        )


def merge_fleet(
    bundles: Sequence[_Named],
    folder: Path,
    name: str,
    options: BuildOptions,
    progress: Progress,
) -> Path | None:
    """Join the bundles of a fleet's models, and say of each that is left out why.

    Where they do not all go together the most that do are joined.

    Args:
        bundles: Each with its model's name.
        name: How the file begins.

    Returns:
        Where it is; None where no two go together.

    Raises:
        FlytuneError: a bundle is corrupt, or the output cannot be written.
    """
    joined = _together(bundles, progress)
    if len(joined) < 2:
        return None
    together = [bundle for _, bundle in joined]
    out = merged_out(folder, name, Target.from_json(together[0].manifest.target))
    if out.exists() and set(merged_from(Bundle.open(out))) == {
        b.digest for b in together
    }:
        progress.say(f"merge: kept: {out} is of these very bundles")
        return out
    with beside(out) as scratch:
        made = scratch / out.name
        # Pinned: they are the very bundles that were just made, or admitted.
        pinned = [Path(f"{b.path}@sha256:{b.digest}") for b in together]
        merged = merge(
            pinned,
            made,
            trust=options.trust,
            provenance=provenance(options.command),
            keys=signing_keys(options, progress),
        )
        os.replace(made, out)
    if merged.conflicts:
        number = counted(len(merged.conflicts), "conflict")
        progress.say(f"merge: {number}, which the manifest names: kept the newest's")
    return out


def _together(bundles: Sequence[_Named], progress: Progress) -> list[_Named]:
    """Return the most bundles that go together, and say why the others do not."""
    groups: list[list[_Named]] = []
    for one in bundles:
        fits = (group for group in groups if not _why_apart(group[0][1], one[1]))
        if (group := next(fits, None)) is not None:
            group.append(one)
        else:
            groups.append([one])
    # The first of the largest.
    joined = max(groups, key=len, default=[])
    for model, bundle in bundles:
        if (model, bundle) not in joined:
            why = _why_apart(joined[0][1], bundle)
            progress.say(f"merge: {model} is not in the bundle of all: {why}")
    return joined


def _why_apart(one: Bundle, other: Bundle) -> str:
    """Return why two bundles cannot be joined; nothing where they can."""
    try:
        check_together((one, other))
    except FlytuneError as error:
        return str(error)
    return ""
