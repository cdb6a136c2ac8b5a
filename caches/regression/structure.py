"""What differs between two bundles apart from times: no device is asked."""

from collections.abc import Iterator, Mapping

from flytune.caches.parts import sizes
from flytune.caches.regression.finding import (
    BUNDLE,
    Finding,
    Kind,
    found,
    noted,
    quoted,
)
from flytune.caches.regression.kernels import kernel_name
from flytune.caches.regression.sides import Side, Sides, names_of
from flytune.caches.several import SEVERAL
from flytune.caches.target import PartStatus, Target, compare
from flytune.caches.words import counted

_MODEL = ("name", "tp", "ep", "engine")
_RANKS = ("tp", "ep")
# Of the candidates a backend may have, those whose kernels a bundle holds.
_COMPILED = ("triton", "flydsl", "cpp")


def structure(sides: Sides, max_growth: float) -> Iterator[Finding]:
    """Yield what differs in structure.

    Args:
        max_growth: Share by which bytes and files may grow.
    """
    yield from _lists(sides)
    yield from _target(sides)
    yield from _verified(sides)
    yield from _growth(sides, max_growth)
    yield from _backends(sides)


def other_model(sides: Sides) -> Iterator[Finding]:
    """Yield whether the baseline is of another model, or of another way to run it.

    It fails where few lists are in both: that such a baseline has others says nothing.
    With most in common it is one model under another name.
    """
    old, new = (side.manifest.model for side in (sides.old, sides.new))
    differ = []
    for name in _MODEL:
        default = 1 if name in _RANKS else None
        was, now = old.get(name, default), new.get(name, default)
        if was != now:
            differ.append(f"{name}: was {quoted(was)}, is {quoted(now)}")
    few, every = len(sides.pairs), len(sides.old.lists)
    if 2 * few >= every:
        yield from (noted(Kind.MODEL, BUNDLE, text) for text in differ)
    elif differ:
        text = (
            f"the baseline is of something else: {'; '.join(differ)}; {few} of its "
            f"{counted(every, 'list')} are here, and nothing else is compared"
        )
        hint = "compare with a bundle of the same model, ranks and engine"
        yield found(Kind.MODEL, BUNDLE, text, hint)


def _lists(sides: Sides) -> Iterator[Finding]:
    for name in names_of(sides.lost):
        text = "the baseline has it, the new bundle does not: serving tunes it anew"
        yield found(Kind.LOST, name, text, "build with the shapes of the baseline")
    for name in names_of(sides.added):
        yield found(Kind.NEW, name, "the baseline lacks it")
    for pair in sides.pairs:
        was, now = pair.calls
        if was != now:
            text = f"calls in a forward pass: were {was}, are {now}"
            yield found(Kind.COUNT, pair.name, text, old=was, new=now)


def _target(sides: Sides) -> Iterator[Finding]:
    """Name the parts of the target that differ, each with what it means."""
    old, new = (Target.from_json(s.manifest.target) for s in (sides.old, sides.new))
    for part in compare(old, new):
        if part.status not in (PartStatus.MISS, PartStatus.WARNING):
            continue
        text = f"{part.part}: was {quoted(part.built)}, is {quoted(part.live)}"
        hint = ""
        if part.status is PartStatus.MISS:
            hint = "hosts that the baseline is for do not hit: " + part.reason
        yield found(
            Kind.TARGET,
            BUNDLE,
            text,
            hint,
            part=part.part,
            old=part.built,
            new=part.live,
        )


def _verified(sides: Sides) -> Iterator[Finding]:
    manifest, old = sides.new.manifest, sides.old.manifest
    path = sides.new.bundle.path
    if manifest.software != old.software and manifest.software == "stand-in":
        text = "was built by stand-in software: install refuses it"
        yield found(Kind.UNVERIFIED, BUNDLE, text, "build in the serving environment")
    if manifest.compiled_only:
        if not old.compiled_only:
            text = "holds kernels for another build, and nothing to serve from"
            hint = f"flytune build --from {path}, where the device is"
            yield found(Kind.UNVERIFIED, BUNDLE, text, hint)
        return
    if manifest.bake.get("settled") is False:
        left = _counted(manifest.bake.get("remaining") or {})
        text = f"not settled: its last pass still did {left or 'some work'}"
        yield found(Kind.UNVERIFIED, BUNDLE, text, "build with more --bake-passes")
    verify = manifest.verify
    if verify is None:
        merged = manifest.program.get("kind") == SEVERAL
        say = noted if merged else found
        hint = f"flytune verify {path}"
        yield say(Kind.UNVERIFIED, BUNDLE, "nobody has verified it", hint)
    elif not verify.get("ok"):
        failures = verify.get("failures") or ["it does not say why"]
        text = f"its verification failed: {failures[0]}"
        yield found(Kind.UNVERIFIED, BUNDLE, text, f"flytune verify {path}")


def _growth(sides: Sides, most: float) -> Iterator[Finding]:
    old, new = (sizes(side.manifest.files) for side in (sides.old, sides.new))
    for at, what in ((1, "bytes"), (0, "files")):
        was, now = (sum(row[at] for row in s.values()) for s in (old, new))
        if now <= was * (1 + most):
            continue
        grown = {part: new[part][at] - old.get(part, (0, 0))[at] for part in new}
        part = max(grown, key=lambda name: grown[name])
        share = f", {now / was - 1:+.0%}" if was else ""
        text = (
            f"{what}: were {was:,}, are {now:,}{share}, above {most:.0%}; "
            f"of these {part} {grown[part]:+,}"
        )
        yield found(
            Kind.SIZE, BUNDLE, text, "--max-growth allows more", old=was, new=now
        )


def _backends(sides: Sides) -> Iterator[Finding]:
    for backend in _backends_of(sides.old):
        was, _ = _working(sides.old, backend)
        now, failed = _working(sides.new, backend)
        if was and not now:
            works = counted(was, "candidate that works", "candidates that work")
            text = f"{backend}: the baseline has {works}, here is none"
            if failed:
                text += f"; the first of {len(failed)} failed: {failed[0]}"
            hint = f"build where {backend} is installed, and with it in --backends"
            yield found(Kind.BACKEND, BUNDLE, text, hint, backend=backend)
            continue
        held = [_kernels(side, backend) for side in (sides.old, sides.new)]
        if held[0] and not held[1]:
            files = counted(held[0], "file")
            text = f"{backend}: the baseline holds {files} of its kernels, "
            yield found(Kind.BACKEND, BUNDLE, text + "here is none", backend=backend)


def _backends_of(side: Side) -> list[str]:
    return sorted({r.backend for one in side.lists for r in one.records})


def _working(side: Side, backend: str) -> tuple[int, list[str]]:
    """Return how many candidates of a backend work, and why the others do not."""
    records = [r for one in side.lists for r in one.records if r.backend == backend]
    failed = [f"{kernel_name(r)}: {r.status}: {r.reason}" for r in records]
    works = [r.status == "ok" for r in records]
    return sum(works), [w for w, ok in zip(failed, works, strict=True) if not ok]


def _kernels(side: Side, backend: str) -> int:
    """Return the files of a backend's kernels; a GPU's bundle has C++ besides."""
    if backend not in _COMPILED or (
        backend == "cpp" and side.hardware("kind") != "cpu"
    ):
        return 0
    return sizes(side.manifest.files).get(backend, (0, 0))[0]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in counts.items())
