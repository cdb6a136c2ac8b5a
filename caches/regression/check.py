"""The comparison of a new bundle with a baseline, from top to bottom."""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from flytune.caches.regression.again import (
    Retime,
    Retimed,
    retimed,
    shifts_again,
    undecided,
)
from flytune.caches.regression.cause import us
from flytune.caches.regression.device import canary_shift, other_device
from flytune.caches.regression.finding import (
    BUNDLE,
    Finding,
    Kind,
    Standing,
    found,
    noted,
)
from flytune.caches.regression.kernels import kernel_name
from flytune.caches.regression.limits import Limits, Threshold
from flytune.caches.regression.serving import Serving, predicted
from flytune.caches.regression.shifts import Shift, is_carried, is_timed, shift_of
from flytune.caches.regression.sides import Side, Sides
from flytune.caches.regression.stale import stale
from flytune.caches.regression.structure import other_model, structure
from flytune.caches.regression.times import Times, decide, findings_of, noisy
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

    def allowed(self, name: str) -> Threshold:
        """Return the thresholds of a list by its name."""
        return self.limits.threshold(name, self.threshold)


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
    retimed: Retimed | None = None
    """What was timed again, where that was asked for."""

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


def check(
    new: Side,
    baseline: Side,
    settings: Settings,
    today: datetime.date,
    retime: Retime | None = None,
) -> Check:
    """Compare a bundle with its baseline, by what both have on record.

    Args:
        today: The day, UTC, by which waivers expire.
        retime: Times again what the records leave open.

    Raises:
        FlytuneError: a merged bundle's parts are malformed, or nothing can be timed
            here.
    """
    sides = Sides.of(new, baseline)
    models = tuple(other_model(sides))
    # A baseline of another model is none, unless a waiver says that it is.
    waived = settings.limits.applied(models, (), today)[: len(models)]
    if any(finding.standing is Standing.FAILS for finding in waived):
        return Check(sides, models, Times(), 0, 0)
    timed = _timed(sides, settings, retime)
    parts = {part for one in timed.findings for part in one.values.get("parts", ())}
    findings = [
        *models,
        *structure(sides, settings.max_growth),
        *predicted(sides, settings.serving),
        *stale(new),
    ]
    # What makes it another device is said once.
    findings = [f for f in findings if f.values.get("part") not in parts]
    findings += timed.findings
    names = [pair.name for pair in sides.pairs]
    names += [one.name for one in timed.times.passes]
    said = settings.limits.applied(findings, names, today)
    carried = sum(map(is_carried, sides.pairs))
    return Check(sides, said, timed.times, carried, timed.untested, timed.again)


class _Timed(NamedTuple):
    """What comes of the times."""

    findings: Sequence[Finding]
    times: Times
    untested: int
    again: Retimed | None


def _timed(sides: Sides, settings: Settings, retime: Retime | None) -> _Timed:
    """Compare the times on record, and those that are taken again.

    Raises:
        FlytuneError: nothing can be timed here.
    """
    shifts = recorded_shifts(sides)
    devices = list(other_device(sides)) if shifts else []
    times = Times() if devices else _decided(sides, shifts, settings)
    findings: list[Finding] = []
    again = None
    if retime is not None:
        sums = len(tokens_of(sides.new)) + 1
        recorded = None if devices else times
        again = retimed(sides, recorded, settings.allowed, retime, sums)
        shifts = shifts_again(shifts, again, settings.allowed)
        times = _decided(sides, shifts, settings, again)
        devices = list(_passed_over(devices, again, retime.unable))
        findings += undecided(times, again)
    findings += devices
    asked, same = retime is not None, sides.same_software
    findings += findings_of(times, same_software=same, retimed=asked)
    findings += noisy(times, settings.threshold, retimed=asked)
    if again is not None or not devices:
        findings += _untimed(sides, again)
    return _Timed(findings, times, len(shifts) - len(times.lists), again)


def _decided(
    sides: Sides,
    shifts: Sequence[Shift],
    settings: Settings,
    again: Retimed | None = None,
) -> Times:
    """Test all lists, and the forward passes where all times are of one device."""
    every = again is not None and again.every
    return decide(
        shifts,
        0.0 if every else canary_shift(sides) or 0.0,
        settings.limits,
        settings.threshold,
        tokens_of(sides.new),
        passes=again is None or again.here or not every,
    )


def _passed_over(
    devices: Sequence[Finding], again: Retimed, unable: str
) -> Iterator[Finding]:
    """Yield why the records decide nothing, now that others are decided on."""
    how = f"decided for the device here: {again.device}"
    for finding in devices:
        text = f"{finding.text}; {unable or how}"
        yield noted(finding.kind, finding.subject, text, **finding.values)
    if not again.here and not unable and not devices:
        text = "the bundles are for other hardware; decided for the device here: "
        text += again.device
        yield noted(Kind.OTHER_DEVICE, BUNDLE, text)


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


def _untimed(sides: Sides, again: Retimed | None) -> Iterator[Finding]:
    for pair in sides.pairs:
        if again is not None and again.of(pair) is not None:
            continue
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
        hint = "flytune explain NEW SHAPE" if new is None else "--retime times both"
        yield found(Kind.UNTIMED, pair.name, text, hint)
