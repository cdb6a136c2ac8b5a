"""A bundle that a budget cut short, in whose place the same build goes on."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flytune.caches.bundle import Bundle
from flytune.caches.manifest import Manifest
from flytune.caches.packing import pack
from flytune.caches.scratch import beside
from flytune.tuner.build_identity import build_identity
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan, check_output
from flytune.tuner.unreached import is_cut_short

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def check_place(plan: Plan, options: BuildOptions) -> None:
    """Refuse an output that exists, unless it is what this build goes on from.

    Raises:
        FlytuneError: as `check_output`.
    """
    if not goes_on(plan, options):
        check_output(plan.out)


def goes_on(plan: Plan, options: BuildOptions) -> bool:
    """Whether a build's output is there, of the very same build, and was cut short."""
    if not is_cut_short(plan.out):
        return False
    provenance = Bundle.open(plan.out).manifest.provenance
    return provenance.get("build") == build_identity(plan, options)


def publish_at(
    staging: Path,
    manifest: Manifest,
    plan: Plan,
    options: BuildOptions,
    keys: Sequence["Ed25519PrivateKey"],
) -> None:
    """Pack a bundle at a build's output, in place of one that it goes on from.

    Raises:
        FlytuneError: as `pack`.
    """
    out = plan.out
    if not goes_on(plan, options):
        pack(staging, manifest, out, keys=keys)
        return
    with beside(out) as scratch:
        made = pack(staging, manifest, scratch / out.name, keys=keys)
        take_place(made, out, scratch)


def take_place(made: Path, out: Path, scratch: Path) -> None:
    """Give a bundle the name of one that it takes the place of.

    An archive takes the place of the old one at once. A directory cannot: the old one
    is put aside first, and comes back where the new one fails to.

    Args:
        scratch: A folder on the file system of both.
    """
    if not out.is_dir():
        made.replace(out)
        return
    old = scratch / "old"
    os.rename(out, old)
    try:
        os.rename(made, out)
    except OSError:
        os.rename(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)
