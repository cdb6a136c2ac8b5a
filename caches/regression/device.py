"""Whether two bundles were timed on one device that was in one state."""

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from flytune.caches.regression.finding import BUNDLE, Finding, Kind, found, quoted
from flytune.caches.regression.shifts import is_timed
from flytune.caches.regression.sides import Side, Sides

CANARY_TOLERANCE = 0.01
"""Share by which the canaries of two tunes may differ."""
RETIME = "--retime times both bundles' winners on the device at hand"
# Whether a model fits, and what a machine has left of its memory, is in no time.
_UNTIMED = ("memory_bytes",)


def other_device(sides: Sides) -> Iterator[Finding]:
    """Yield why the stored times of two bundles decide nothing; nothing if they do."""
    old, new = (side.manifest.target["hardware"] for side in (sides.old, sides.new))
    if names := differing(old, new):
        # Of another kind of device nothing is the same: its name says it all.
        said = ["product"] if {"kind", "product"} <= set(names) else names
        text = "; ".join(
            f"hardware.{name}: was {quoted(old.get(name))}, is {quoted(new.get(name))}"
            for name in said
        )
        parts = tuple(f"hardware.{name}" for name in names)
        yield found(Kind.OTHER_DEVICE, BUNDLE, text, RETIME, parts=parts)
        return
    was, now = sides.old.manifest.timed_on, sides.new.manifest.timed_on
    if was != now and None not in (was, now):
        text = f"timed on: was `{was}`, is `{now}`"
        yield found(Kind.OTHER_DEVICE, BUNDLE, text, RETIME)
        return
    shift = canary_shift(sides)
    if shift is None:
        which = [s.bundle.path.name for s in (sides.old, sides.new) if not _canary(s)]
        text = f"no canary is on record: {', '.join(which)}"
        yield found(Kind.OTHER_DEVICE, BUNDLE, text, RETIME)
    elif abs(math.expm1(shift)) > CANARY_TOLERANCE:
        before, after = _canary(sides.old), _canary(sides.new)
        text = (
            f"the canary, one and the same GEMM, took {before:.1f} us and takes "
            f"{after:.1f} us, {math.expm1(shift):+.1%}: more than "
            f"{CANARY_TOLERANCE:.0%} apart, the device was not the same"
        )
        yield found(Kind.OTHER_DEVICE, BUNDLE, text, RETIME, old=before, new=after)


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the parts of two targets' hardware that differ and that a time is of."""
    names = sorted((old.keys() | new.keys()) - set(_UNTIMED))
    return [name for name in names if old.get(name) != new.get(name)]


def canary_shift(sides: Sides) -> float | None:
    """Return the logarithm of the new canary's time over the old one's.

    None where a bundle has no canary.
    """
    before, after = _canary(sides.old), _canary(sides.new)
    return math.log(after / before) if before and after else None


def _canary(side: Side) -> float:
    """Return the middle of a bundle's canaries in microseconds; 0 where it has none."""
    times = [
        record.canary_us
        for one in side.lists
        for record in one.records
        if is_timed(record) and record.canary_us
    ]
    return statistics.median(times) if times else 0.0
