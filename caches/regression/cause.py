"""Why a list got slower, as far as its candidates tell."""

import math

from flytune.caches.columns import Status
from flytune.caches.records import TuningRecord
from flytune.caches.regression.kernels import (
    counterpart,
    is_alike,
    is_same,
    kernel_name,
)
from flytune.caches.regression.shifts import Shift, is_timed, time_of

_AGAIN = "build again{}: something may have slowed this one build down"


def cause_of(one: Shift, *, same_software: bool, retimed: bool) -> tuple[str, str]:
    """Return why a list has another time, in words, and what to do.

    Args:
        retimed: Whether timing again was asked for, which is no advice then.
    """
    again = _AGAIN.format("" if retimed else ", or --retime")
    old, new = one.old, one.new
    was, now = kernel_name(old), kernel_name(new)
    if is_same(old, new, same_software=same_software):
        return f"same kernel slower: {now}, the very same code", again
    if is_alike(old, new):
        return (
            f"same kernel slower: {now}, compiled anew",
            "look at what its compiler changed: flytune explain NEW SHAPE",
        )
    other = "other backend" if old.backend != new.backend else "other config"
    why, hint = _fate(one, same_software, again)
    return f"{other}: {was} was taken, {now} is; {why}", hint


def _fate(one: Shift, same_software: bool, again: str) -> tuple[str, str]:
    """Say what became of the old winner."""
    left = counterpart(one.old, one.pair.new, same_software=same_software)
    if left is None:
        return (
            "the first is no candidate any more",
            "see which candidates there are: flytune explain NEW SHAPE",
        )
    if left.status is not Status.OK:
        return (
            f"the first failed here, {left.status}: {left.reason}",
            "build again where it works, or waive it",
        )
    if left.pruned_by and not is_timed(left):
        return f"the first was not timed, left out by {left.pruned_by}", again
    if not is_timed(left):
        return "the first has no time here", again
    if one.race is not None and one.race.looks > 1:
        return "timed side by side here", "build again where nothing else runs"
    shift = math.log(time_of(left) / one.old_us)
    return f"the first takes {_us(left)} us here, {math.expm1(shift):+.1%}", again


def _us(record: TuningRecord) -> str:
    return us(time_of(record))


def us(time_us: float) -> str:
    """Return microseconds as the tables print them."""
    return f"{time_us:.2f}" if time_us < 10 else f"{time_us:,.1f}"
