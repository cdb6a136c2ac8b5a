"""What a device reaches at most: as its build measured it, else the best seen."""

from collections.abc import Mapping
from dataclasses import dataclass

from flytune.caches.report.bundles import ReportedBundle, ReportedList, stated
from flytune.caches.report.work import moved_bytes, tflops, type_of


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the device reaches at most of one thing."""

    value: float
    """TFLOP/s, or TB/s."""
    measured: bool
    """Whether the build measured it; else it is the best of all candidates."""


@dataclass(frozen=True, slots=True)
class Roof:
    """The ceilings of a device."""

    memory: Ceiling
    """TB/s."""
    compute: Mapping[str, Ceiling]
    """TFLOP/s by type."""

    def limit(self, one: ReportedList) -> float | None:
        """Return the TFLOP/s that a list could reach."""
        ceiling = self.compute.get(type_of(one.shape))
        if one.intensity is None or ceiling is None:
            return None
        return min(ceiling.value, self.memory.value * one.intensity)

    def share(self, one: ReportedList) -> float | None:
        """Return the part of its limit that a list's winner reaches."""
        limit = self.limit(one)
        return one.achieved / limit if one.achieved and limit else None


def roof_of(bundle: ReportedBundle) -> Roof | None:
    """Return the ceilings of a bundle's device; None where no candidate has a time."""
    best_memory, best = 0.0, dict[str, float]()
    for one in bundle.lists:
        moved, kind = moved_bytes(one.shape), type_of(one.shape)
        for us in list(one.best_us.values())[:1]:
            best[kind] = max(best.get(kind, 0.0), tflops(one.shape, us))
            best_memory = max(best_memory, (moved or 0.0) / us / 1e6)
    if not best_memory:
        return None
    ceilings = stated(bundle.manifest.provenance.get("ceilings"), dict)
    rates = stated(ceilings.get("gemm_tflops"), dict)
    copy = _positive(ceilings.get("copy_gb_s"))
    return Roof(
        Ceiling(copy / 1e3, True) if copy else Ceiling(best_memory, False),
        {
            kind: Ceiling(rate, True)
            if (rate := _positive(rates.get(kind)))
            else Ceiling(value, False)
            for kind, value in best.items()
        },
    )


def _positive(value: object) -> float | None:
    number = isinstance(value, int | float) and 0 < value < float("inf")
    return float(value) if number and isinstance(value, int | float) else None
