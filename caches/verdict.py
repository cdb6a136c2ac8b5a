"""What a verification found, of one run of a bundle's program or of several."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification found."""

    failures: tuple[str, ...]
    """One line each; none means that the bundle hits."""
    uncacheable: tuple[str, ...]
    """Graphs that torch refuses to cache and lowers in each process, with its reason;
    a failure only when strict."""
    work: Mapping[str, int]
    """Events that a bundle must make needless, by kind."""
    aside: Mapping[str, int]
    """Events that a hit has too, by kind."""
    lookups: Mapping[str, int]
    """Graph-cache lookups, "layer state" -> count."""
    first_call_s: float
    """All first calls together: each piece at each size."""
    worst_error: float | None
    """Largest relative difference from eager; None where it is no number."""
    peak_gib: float
    processes: tuple[Mapping[str, Any], ...] = ()
    """Of a command, what each of its processes did; not kept in a manifest."""

    def ok(self, *, strict: bool) -> bool:
        """Whether the bundle passes."""
        return not self.failures and not (strict and self.uncacheable)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's form."""
        row = {**asdict(self), "ok": self.ok(strict=False)}
        row.pop("processes")
        return row


def refused_bundle(failures: tuple[str, ...]) -> Verdict:
    """Return the verdict on a bundle whose program is not run."""
    return Verdict(failures, (), {}, {}, {}, 0.0, None, 0.0)


def both(first: Verdict, second: Verdict) -> Verdict:
    """Return the verdict on two runs; the first tells the time of first calls."""
    errors = [one.worst_error for one in (first, second)]
    known = [error for error in errors if error is not None]
    return Verdict(
        failures=first.failures + second.failures,
        uncacheable=tuple(dict.fromkeys(first.uncacheable + second.uncacheable)),
        work=dict(Counter(first.work) + Counter(second.work)),
        aside=dict(Counter(first.aside) + Counter(second.aside)),
        lookups=dict(Counter(first.lookups) + Counter(second.lookups)),
        first_call_s=first.first_call_s,
        worst_error=max(known) if len(known) == len(errors) else None,
        peak_gib=max(first.peak_gib, second.peak_gib),
        processes=first.processes + second.processes,
    )


def every(first: Verdict, second: Verdict) -> Verdict:
    """Return the verdict on two programs, whose first calls both count."""
    seconds = first.first_call_s + second.first_call_s
    return replace(both(first, second), first_call_s=seconds)


def of_program(verdict: Verdict, whose: str) -> Verdict:
    """Return a verdict whose failures begin with the words for its run."""
    return replace(verdict, failures=tuple(whose + line for line in verdict.failures))
