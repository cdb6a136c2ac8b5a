"""Bundles that packages of this environment bring, as `wheel` makes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flytune.caches.bundle import ARCHIVE_SUFFIX, Bundle
from flytune.caches.codes import Code
from flytune.shapes.errors import FlytuneError

GROUP = "flytune.bundles"
"""The group of entry points; the value of one is the package that holds a bundle."""
BUNDLE_NAME = f"bundle{ARCHIVE_SUFFIX}"
"""The one file of such a package, beside its `__init__.py`. An archive, because pip
compiles each Python file that it installs, and a bundle may hold nothing besides."""


@dataclass(frozen=True, slots=True)
class FoundBundle:
    """A bundle that a package brings; nothing of it was read."""

    name: str
    """Of the distribution."""
    version: str
    path: Path


def find_bundles() -> tuple[FoundBundle, ...]:
    """Return the bundles that packages of this environment bring; imports none."""
    return tuple(sorted(_found(), key=lambda one: (one.name, one.version)))


def _found() -> Iterator[FoundBundle]:
    import importlib.metadata

    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.dist is None:
            continue
        path = Path(str(entry.dist.locate_file(f"{entry.value}/{BUNDLE_NAME}")))
        if path.is_file():
            yield FoundBundle(entry.dist.name, entry.dist.version, path)


def installed_bundle(model: str | None) -> Path:
    """Return the one bundle of this environment's packages that is for this host.

    Args:
        model: as the manifest names it, in any case, or the distribution's name; None
            takes any.

    Raises:
        FlytuneError: there is none, or there are several.
    """
    from flytune.caches.choice import Wanted, choose
    from flytune.caches.oci import Descriptor, annotations

    opened = [(found, Bundle.open(found.path)) for found in find_bundles()]
    if not opened:
        raise FlytuneError(
            "no package of this environment brings a bundle",
            hint="pip install what `flytune wheel` made",
            code=Code.NO_PACKAGE,
        )
    bundles = {
        bundle.digest: bundle
        for found, bundle in opened
        if model is None or _is(found, bundle, model)
    }
    if not bundles:
        known = ", ".join(found.name for found, _ in opened)
        raise FlytuneError(
            f"no package brings a bundle of `{model}`: there is {known}",
            code=Code.NO_PACKAGE,
        )
    offered = [
        Descriptor("", digest, 0, annotations(bundle.manifest))
        for digest, bundle in bundles.items()
    ]
    wanted = Wanted(for_host=True)
    try:
        chosen = choose(offered, wanted, lambda entry: bundles[entry.digest].manifest)
    except FlytuneError as error:
        # What to do about a registry's tag is not what to do about a package.
        error.code, error.hint = Code.NO_PACKAGE, None
        raise
    return bundles[chosen.digest].path


def _is(found: FoundBundle, bundle: Bundle, model: str) -> bool:
    names = (str(bundle.manifest.model.get("name")), found.name)
    return model.casefold() in map(str.casefold, names)
