"""The comparison of a new bundle with a baseline, from top to bottom."""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from flytune.caches.regression.cause import us
from flytune.caches.regression.device import canary_shift, other_device
from flytune.caches.regression.finding import Finding, Kind, Standing, found, noted
from flytune.caches.regression.kernels import kernel_name
from flytune.caches.regression.limits import Limits, Threshold
from flytune.caches.regression.serving import Serving, predicted
from flytune.caches.regression.shifts import Shift, is_carried, is_timed, shift_of
from flytune.caches.regression.sides import Side, Sides
from flytune.caches.regression.stale import stale
from flytune.caches.regression.structure import structure
from flytune.caches.regression.times import Times, decide, findings_of
from flytune.caches.several import parts_of


class Outcome(IntEnum):
    """What a comparison comes to; the exit code of `flytune check`."""

    FINE = 0
    REGRESSION = 1
    UNDECIDED = 3
    """The times on record decide nothing here."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is allowed."""

    threshold: Threshold = field(default_factory=Threshold)
    max_growth: float = 0.2
    """Share by which bytes and files may grow."""
    serving: Serving | None = None
    """The policy that serving has; None for the baseline's."""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Check:
    """A comparison that was made."""

    sides: Sides
    findings: tuple[Finding, ...]
    times: Times
    carried: int
    """Lists whose rounds were taken over from the baseline, and are not tested."""
    untested: int
    """Lists with times in both bundles that cannot be compared."""

    @property
    def outcome(self) -> Outcome:
        """What it comes to: a failure outweighs what cannot be decided."""
        standings = {finding.standing for finding in self.findings}
        if Standing.FAILS in standings:
            return Outcome.REGRESSION
        undecided = Standing.UNDECIDED in standings
        return Outcome.UNDECIDED if undecided else Outcome.FINE

    def of(self, standing: Standing) -> tuple[Finding, ...]:
        """Return the findings of one standing."""
        return tuple(f for f in self.findings if f.standing is standing)


def check(new: Side, baseline: Side, settings: Settings, today: datetime.date) -> Check:
    """Compare a bundle with its baseline, by what both have on record.

    Args:
        today: The day, UTC, by which waivers expire.

    Raises:
        FlytuneError: a merged bundle's parts are malformed.
    """
    sides = Sides.of(new, baseline)
    findings = [
        *structure(sides, settings.max_growth),
        *predicted(sides, settings.serving),
        *stale(new),
    ]
    carried = sum(map(is_carried, sides.pairs))
    shifts = recorded_shifts(sides)
    times = Times()
    devices = list(other_device(sides)) if shifts else []
    if devices:
        findings += devices
    else:
        times = decide(
            shifts,
            canary_shift(sides) or 0.0,
            settings.limits,
            settings.threshold,
            tokens_of(new),
        )
        findings += findings_of(times, same_software=sides.same_software)
        findings += _untimed(sides)
    names = [pair.name for pair in sides.pairs]
    names += [one.name for one in times.passes]
    said = settings.limits.applied(findings, names, today)
    return Check(sides, said, times, carried, len(shifts) - len(times.lists))


def recorded_shifts(sides: Sides) -> list[Shift]:
    """Return the shift of each list that was timed for either bundle by itself."""
    shifts = (
        shift_of(pair, same_software=sides.same_software)
        for pair in sides.pairs
        if not is_carried(pair)
    )
    return [shift for shift in shifts if shift is not None]


def tokens_of(side: Side) -> Sequence[int]:
    """Return the static sizes of a bundle, of all its parts."""
    policies = [part["policy"] for part in parts_of(side.manifest)]
    return sorted({t for policy in policies for t in policy.get("tokens") or ()})


def _untimed(sides: Sides) -> Iterator[Finding]:
    for pair in sides.pairs:
        old, new = pair.old.winner, pair.new.winner
        if old is None or not is_timed(old):
            if new is not None and is_timed(new):
                text = f"{kernel_name(new)} takes {us(new.median_us or 0)} us; the "
                yield noted(Kind.UNTIMED, pair.name, text + "baseline has no time")
            continue
        if new is not None and is_timed(new):
            continue
        if shift_of(pair, same_software=sides.same_software) is not None:
            continue
        now = "nothing won" if new is None else f"{kernel_name(new)} is taken untimed"
        why = "" if new is None or not new.reason else f" ({new.reason})"
        text = f"took {us(old.median_us or 0)} us with {kernel_name(old)}; {now}{why}"
        yield found(Kind.UNTIMED, pair.name, text, "--retime times both")
