"""Which bundle of a mixed fleet's index is for this host."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flytune.caches.codes import Code
from flytune.caches.device_profile import may_have_accelerator
from flytune.caches.manifest import Manifest
from flytune.caches.oci import ENGINE, EP, TARGET, TP, Descriptor
from flytune.caches.target import PartStatus, Target
from flytune.caches.variants import compare_parts
from flytune.shapes.errors import FlytuneError


class NoBundleError(FlytuneError):
    """A place that could be asked has no such bundle."""

    def __init__(self, message: str, *, code: Code = Code.UNFIT) -> None:
        super().__init__(message, code=code)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of an index; None leaves it open."""

    target: str | None = None
    """As `Target.slug` names it."""
    tp: int | None = None
    ep: int | None = None
    engine: str | None = None
    for_host: bool = False
    """Whether this host must be one that the bundle is for."""

    def __str__(self) -> str:
        words = (
            self.target,
            None if self.tp is None else f"tp{self.tp}",
            None if self.ep is None else f"ep{self.ep}",
            self.engine,
            "this host" if self.for_host else None,
        )
        asked = " ".join(word for word in words if word)
        return f" for {asked}" if asked else ""

    def allows(self, entry: Descriptor) -> bool:
        """Whether an entry says of itself that it is what is asked for."""
        notes = entry.annotations
        return all(
            want is None or str(want) in notes.get(name, "").split(",")
            for name, want in (
                (TARGET, self.target),
                (TP, self.tp),
                (EP, self.ep),
                (ENGINE, self.engine),
            )
        )


def choose(
    offered: Iterable[Descriptor],
    wanted: Wanted,
    load: Callable[[Descriptor], Manifest | str],
) -> Descriptor:
    """Return the one entry that is what is asked for.

    What an entry says of itself only narrows the choice: for a host its manifest is
    compared, part by part.

    Args:
        load: Gets the manifest of an entry's bundle, as `read_manifest` does.

    Raises:
        NoBundleError: none is, and which is nearest.
        FlytuneError: several are.
    """
    offered = tuple(offered)
    found = tuple(entry for entry in offered if wanted.allows(entry))
    if not found:
        raise NoBundleError(f"no bundle{wanted}: there is {_names(offered)}")
    if wanted.for_host:
        judged = [(host_misses(load(entry)), entry) for entry in found]
        found = tuple(entry for misses, entry in judged if not misses)
        if not found:
            misses, nearest = min(judged, key=lambda one: len(one[0]))
            raise NoBundleError(
                f"no bundle{wanted}: nearest is {_name(nearest)}: {'; '.join(misses)}"
            )
    if len(found) > 1:
        raise FlytuneError(
            f"several bundles{wanted}: {_names(found)}",
            hint="choose by --for-host, --target, --tp, --ep or --engine",
            code=Code.SEVERAL,
        )
    return found[0]


def read_manifest(text: bytes) -> Manifest | str:
    """Return a manifest, or why it is none to this flytune.

    One bundle of a fleet may be of a newer schema, and another still be for this host.
    """
    try:
        return Manifest.from_json(text)
    except FlytuneError as error:
        return str(error)


def host_misses(manifest: Manifest | str) -> tuple[str, ...]:
    """Return why a bundle would not be used here, a line each.

    Raises:
        FlytuneError: this host's accelerator cannot be asked.
    """
    if isinstance(manifest, str):
        return (manifest,)
    kind = str(manifest.target["hardware"].get("kind"))
    threads = manifest.policy.get("threads")
    if kind == "cpu" or may_have_accelerator():
        live = Target.live(kind, threads=threads)
    else:
        live = Target.here(threads=threads, hardware={"kind": "absent"})
    parts = compare_parts(manifest, live)
    misses = tuple(str(part) for part in parts if part.status is PartStatus.MISS)
    if manifest.compiled_only:
        return ("it holds kernels for a build, and nothing to serve from", *misses)
    if manifest.software != "serving":
        return (f"software: built by `{manifest.software}`", *misses)
    return misses


def _names(entries: Iterable[Descriptor]) -> str:
    return ", ".join(map(_name, entries)) or "none"


def _name(entry: Descriptor) -> str:
    notes = entry.annotations
    rank, experts = notes.get(TP, "1"), notes.get(EP, "1")
    words = (
        notes.get(TARGET, entry.digest),
        f"tp{rank}",
        "" if experts == "1" else f"ep{experts}",
        notes.get(ENGINE, ""),
    )
    return " ".join(word for word in words if word)
