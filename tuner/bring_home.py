"""How what a cluster has made comes home: whole, checked and signed, or not at all."""

import hashlib
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flytune.caches.bundle import ARCHIVE_SUFFIX, Bundle, writing
from flytune.caches.packing import check_absent, publish, sign
from flytune.caches.scratch import beside
from flytune.caches.several import parts_of
from flytune.shapes.errors import FlytuneError
from flytune.tuner.build_identity import builds_of
from flytune.tuner.cluster_build import Parcel
from flytune.tuner.going_on import take_place

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from flytune.tuner.remote_build import RemoteBuild

    Keys = Sequence[Ed25519PrivateKey]

_READ_BYTES = 8 * 2**20


def bring_home(ray: Any, build: "RemoteBuild", keys: "Keys") -> None:
    """Write what a build has made where it belongs, and say so.

    What the same build has there already stays where it is whole, and gives way where
    a budget had cut it short.

    Args:
        ray: Ray's module, which is a client of the cluster.
        keys: Those that sign the bundles.

    Raises:
        FlytuneError: what comes is not what was made there, or something else has its
            name; it is there still.
    """
    parcel: Parcel | None = ray.get(build.actor.parcel.remote())
    bundles = []
    if parcel is not None:
        out = build.place(Path(parcel.name))
        if build.request.several:
            out.mkdir(exist_ok=True)
        near = out / "bundles" if build.request.several else out
        with writing(out, output=True), beside(near) as scratch:
            whole = scratch / "whole"
            _fetch(ray, build.actor, parcel, whole)
            if parcel.name:
                made = [(whole, out)]
            else:
                made = [(one, out / one.name) for one in _unpacked(whole, scratch)]
            for one, there in made:
                if not _publish(one, there, keys, scratch):
                    words = f"kept: {there} is of this very build"
                    click.echo(f"{build.prefix}{words}", err=True)
                bundles.append(there)
    if bundles and (build.code == 0 or not build.request.several):
        ray.get(build.actor.clear.remote())
    # With what it made it has no more to tell.
    ray.kill(build.actor)
    for text in build.results:
        if not text.startswith("bundle  "):
            click.echo(text)
    for there in bundles:
        click.echo(f"bundle  {there}")


def _fetch(ray: Any, actor: Any, parcel: Parcel, path: Path) -> None:
    """Write what was made there; a file that comes spoiled is an error."""
    whole = hashlib.sha256()
    with path.open("wb") as file:
        for offset in range(0, parcel.size_bytes, _READ_BYTES):
            part = ray.get(actor.read.remote(offset, _READ_BYTES))
            whole.update(part)
            file.write(part)
    if whole.hexdigest() != parcel.sha256:
        raise FlytuneError(
            "what came from the cluster is not what was made there",
            hint="the same command brings it again",
        )


def _unpacked(archive: Path, scratch: Path) -> list[Path]:
    folder = scratch / "several"
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return sorted(folder.iterdir())


def _publish(path: Path, out: Path, keys: "Keys", scratch: Path) -> bool:
    """Check a bundle, sign it, and give it its name, unless what has it stays.

    Returns:
        Whether it has the name now.

    Raises:
        FlytuneError: it is corrupt, or something else has the name.
    """
    bundle = Bundle.open(path)
    old = Bundle.open(out) if out.exists() else None
    if old is None:
        check_absent(out)
    elif _stays(old, bundle):
        return False
    bundle.check()
    for key in keys:
        sign(Bundle.open(path), key)
    made = path
    if not out.name.endswith(ARCHIVE_SUFFIX):
        bundle, placed = Bundle.open(path), scratch / "placed"
        bundle.place(placed)
        for name, content in bundle.heads().items():
            (placed / name).write_bytes(content)
        made = publish(placed, scratch / "home")
    if old is None:
        made.rename(out)
    else:
        take_place(made, out, scratch)
    return True


def _stays(old: Bundle, new: Bundle) -> bool:
    """Whether what has a bundle's name stays there, or gives way to it.

    Each of them may be merged, of several builds.

    Raises:
        FlytuneError: neither: it is of another build, or does not hit.
    """
    if old.digest == new.digest:
        return True
    before, now = builds_of(old), builds_of(new)
    if None in before or not before <= now:
        check_absent(old.path)
    cut = [p for p in parts_of(old.manifest) if p["coverage"].get("over_budget")]
    if cut or before < now:
        return False
    if not (old.manifest.verify or {"ok": True}).get("ok"):
        check_absent(old.path)
    return True
