"""After how many starts a build has paid for itself, by what its bundle says.

A start without the bundle compiles the program's graphs and kernels, as the first
passes of the bake did, and tunes its lists, as the build did; one with it does what the
verification did. Each of them starts a process and makes the model, which thus counts
in neither.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flytune.caches.lists import TunedList
from flytune.caches.manifest import Manifest
from flytune.caches.report.bundles import stated
from flytune.caches.several import parts_of
from flytune.caches.words import counted, seconds_text

_OF_DEFAULT = 20
"""Candidates of one of Inductor's default lists on an H200."""


@dataclass(frozen=True, slots=True)
class Paid:
    """What a build took, and what each start from its bundle saves."""

    build_s: float
    compiled_s: float
    """Of a start without the bundle, to compile what a start with it loads."""
    tuned_s: float
    """Of such a start, to compile and time the candidates of its lists."""

    @property
    def saved_s(self) -> float:
        """Of each start."""
        return self.compiled_s + self.tuned_s

    @property
    def starts(self) -> int | None:
        """After which the build has paid; None where a start saves nothing."""
        return math.ceil(self.build_s / self.saved_s) if self.saved_s > 0 else None

    @property
    def text(self) -> str:
        """What is said of it."""
        if self.starts is None:
            return "A start from the bundle takes as long as one without it."
        return (
            f"The build has paid for itself after {counted(self.starts, 'start')}: one "
            f"without the bundle takes {seconds_text(self.saved_s)} longer, "
            f"{seconds_text(self.compiled_s)} to compile what is loaded from it (the "
            "bake's first pass less the verification) and "
            f"{seconds_text(self.tuned_s)} to compile and time the candidates."
        )


def paid(manifest: Manifest, lists: Iterable[TunedList]) -> Paid | None:
    """Return when a build has paid; None where its bundle does not say.

    Args:
        lists: The bundle's.
    """
    parts = parts_of(manifest)
    if len(parts) > 1:
        return None
    stages = _stages(parts[0]["provenance"])
    passes = stated(manifest.bake.get("passes"), list)
    # Those that compiled graphs: with coordinate descent there are two.
    heavy = sum(bool(stated(work, dict).get("lowered")) for work in passes)
    if not heavy or not {"bake", "verify"} <= stages.keys():
        return None
    load_s = stages["verify"]
    compile_s = (stages["bake"] - (len(passes) - heavy) * load_s) / heavy
    tuned_s = _tuned_s(manifest, list(lists))
    build_s = sum(stages.values())
    # Where it went on after an interruption it has tuned before.
    build_s += max(0.0, tuned_s - stages.get("tune", 0.0))
    return Paid(build_s, max(0.0, compile_s - load_s), tuned_s)


def _stages(provenance: Mapping[str, Any]) -> dict[str, float]:
    return {
        str(row[0]): float(row[1])
        for row in stated(provenance.get("stages"), list)
        if isinstance(row, list) and len(row) == 2 and isinstance(row[1], int | float)
    }


def _tuned_s(manifest: Manifest, lists: list[TunedList]) -> float:
    """Return what a start would take to tune its lists.

    Of a list that was searched further than serving would by itself, as many candidates
    count as Inductor's default list has.
    """
    estimate = stated(manifest.provenance.get("estimate"), dict)
    slots = estimate.get("slots")
    slots = slots if isinstance(slots, int) and slots > 0 else 1
    further = manifest.coverage.get("search") not in (None, "default")
    seconds = 0.0
    for one in lists:
        tried = [r for r in one.records if r.median_us is not None or r.compile_s]
        if len(one.records) < 2 or not tried:
            continue
        compile_s = sum(r.compile_s or 0.0 for r in tried) / slots
        device_s = sum({r.batch_s or 0.0 for r in tried})
        share = min(1.0, _OF_DEFAULT / len(tried)) if further else 1.0
        seconds += share * (compile_s + device_s)
    return seconds
