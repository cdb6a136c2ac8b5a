"""Stages 3 to 5: build the candidates, time them, and choose.

What is finished is on disk before the next begins; what is there is not done again.
"""

import functools
import itertools
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, NamedTuple

from flytune.caches.columns import Status
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.records import TuningRecord
from flytune.caches.words import counted, form_of
from flytune.tuner.account import Unaccounted
from flytune.tuner.candidate import TuneTask
from flytune.tuner.decision import Decision, decide, lone
from flytune.tuner.ending import Ending
from flytune.tuner.heat import Heat
from flytune.tuner.journal import Journal
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.quarantine import NAME, Quarantine, was_refused
from flytune.tuner.recall import Recall
from flytune.tuner.shared_lists import Sharing
from flytune.tuner.smart.cost_model import Observed
from flytune.tuner.smart.earlier import earlier_builds, measured
from flytune.tuner.smart.limits import Limits
from flytune.tuner.smart.waves import SmartSearch, Time
from flytune.tuner.timed_device import device_of
from flytune.tuner.unreached import is_cut, unreached
from flytune.tuner.upgrade import Known, Upgrade, settled
from flytune.tuner.work import StartFarm, Work

SMART = "smart"
"""The search that tries some of an exhaustive list."""


class Searched(NamedTuple):
    """What a search found."""

    decisions: tuple[Decision, ...]
    ceilings: Mapping[str, Any]
    """As `measure_ceilings`; empty where nothing was timed."""


def search(
    plan: Plan,
    tasks: Sequence[TuneTask],
    options: BuildOptions,
    journal: Journal,
    older: Iterable[TuningRecord],
    start: StartFarm,
    progress: Progress,
    upgrade: Upgrade | None = None,
    sharing: Sharing | None = None,
    account: Unaccounted | None = None,
) -> Searched:
    """Return a decision for every task, in their order, and what the device can do.

    Where a budget ends before they are, the lists that are left get the library's
    kernel; the journal has nothing of those.

    Args:
        start: Called where something is to be built or timed.
        older: Records of an earlier bundle for the same target, taken where they are
            of the very same list.
        upgrade: The lists of an earlier bundle of another environment.
        sharing: What other builds of a fleet have decided, and get to know.
        account: What the build may spend, and what becomes of it.

    Raises:
        FlytuneError: a list has no candidate that survives, or Ray cannot be had.
    """
    older = tuple(older)
    recall = Recall(journal, older, device_of(plan).name, sharing)
    alone = [t for t in tasks if len(t.offered.candidates) == 1]
    choices = [t for t in tasks if len(t.offered.candidates) > 1]
    decided = {task.offered.key: lone(task) for task in alone}
    quarantine = Quarantine(options.work / NAME, device_of(plan).name, options.exclude)
    for task in choices:
        decision = recall.decision(task)
        if decision is not None and _stands(decision, quarantine.refusals(task)):
            decided[task.offered.key] = decision
    decided |= _of_others(recall, choices, decided, quarantine, progress)
    waiting = [task for task in choices if task.offered.key not in decided]
    progress.say(
        f"tune: {len(waiting)} lists to time, {len(choices) - len(waiting)} known "
        f"from earlier work, {len(alone)} with one candidate and no choice"
    )
    if recall.unreadable:
        progress.say(f"tune: passed over {recall.unreadable} unreadable journal rows")
    account = account or Unaccounted()
    heat = account.heat(recall.ceilings, older)
    account.listed(choices, waiting, journal, heat)
    if waiting:
        waiting = heat.ordered(waiting)
        farm = start()
        account.begin_tuning(waiting, farm, heat, progress)
        ending = Ending(
            *(account.allowance, waiting, quarantine.refusals), in_turn=account.in_turn
        )
        holding = (ending.is_over, account.allowance.meter.hold)
        work = Work(farm, plan, options, progress, quarantine, *holding)
        time = functools.partial(ending.timed, work)
        known = _known(waiting, upgrade)
        rest = functools.partial(_whole, time, known)
        if options.search == SMART and plan.profile is not None:
            smart = _smart(plan, options, plan.profile, older, known)
            given = (time, recall, quarantine, known, progress, ending, heat)
            rest = functools.partial(_some, smart, *given)
            # What an older bundle does not know of a list is to be searched.
            known = [one for one in known if one.knows_all]
        for decision in _decisions(work, waiting, known, upgrade, rest, progress):
            ending.decided(decision.task)
            # What was cut short goes on with the same command.
            if not is_cut(decision):
                recall.keep(decision)
            decided[decision.task.offered.key] = decision
        recall.keep_ceilings(work.ceilings(waiting))
    for task in waiting:
        if task.offered.key not in decided:
            decided[task.offered.key] = unreached(task, quarantine.refusals(task))
    decisions = tuple(decided[task.offered.key] for task in tasks)
    account.end_tuning(decisions, heat, progress)
    return Searched(decisions, recall.ceilings)


def _known(tasks: Iterable[TuneTask], upgrade: Upgrade | None) -> list[Known]:
    """Return the lists that an older bundle of another environment has decided."""
    if upgrade is None:
        return []
    return [one for one in map(upgrade.known, tasks) if one is not None]


def _smart(
    plan: Plan,
    options: BuildOptions,
    profile: DeviceProfile,
    older: Iterable[TuningRecord],
    known: Iterable[Known],
) -> SmartSearch:
    """Return the search of lists that are not tried whole, with all that is known."""
    limits, device = Limits.of(profile), device_of(plan).name
    records = itertools.chain(
        older,
        (record for one in known for record in one.older.values()),
        earlier_builds(options.work, plan.work, device),
    )
    return SmartSearch(
        limits, (*measured(), *(Observed(record, limits) for record in records))
    )


def _of_others(
    recall: Recall,
    tasks: Iterable[TuneTask],
    decided: Container[Any],
    quarantine: Quarantine,
    progress: Progress,
) -> dict[Any, Decision]:
    """Return what other builds of a fleet have decided, by the lists' keys.

    Args:
        decided: Keys of the lists that need nobody else's decision.
    """
    taken: dict[Any, Decision] = {}
    for task in tasks:
        if task.offered.key in decided:
            continue
        decision = recall.shared(task)
        if decision is not None and _stands(decision, quarantine.refusals(task)):
            recall.take(task)
            taken[task.offered.key] = decision
    if taken:
        progress.say(f"tune: {counted(len(taken), 'list')} decided for other models")
    return taken


def _decisions(
    work: Work,
    tasks: Sequence[TuneTask],
    fronts: Sequence[Known],
    upgrade: Upgrade | None,
    rest: Callable[[Sequence[TuneTask]], Iterable[Decision]],
    progress: Progress,
) -> Iterator[Decision]:
    """Yield a decision for every list; what is known of an upgrade comes first.

    Args:
        fronts: Lists that their fronts may decide.
        rest: Decides the others.
    """
    done = set()
    if upgrade is not None and fronts:
        for decision in _of_fronts(work, fronts, upgrade, progress):
            done.add(decision.task.offered.key)
            yield decision
    if left := [task for task in tasks if task.offered.key not in done]:
        for decision in rest(left):
            yield decision.decided_at(progress.elapsed_s)


def _whole(
    time: Time, known: Sequence[Known], tasks: Sequence[TuneTask]
) -> Iterator[Decision]:
    """Yield the decisions of lists of which every candidate is timed."""
    last = {one.task.offered.key: one.winner for one in known}
    for timed in time(tasks):
        yield decide(*timed, last=last.get(timed.task.offered.key, ""))


def _some(
    smart: SmartSearch,
    time: Time,
    recall: Recall,
    quarantine: Quarantine,
    known: Sequence[Known],
    progress: Progress,
    ending: Ending,
    heat: Heat,
    tasks: Sequence[TuneTask],
) -> Iterator[Decision]:
    """Yield the decisions of lists of which some candidates are timed."""
    yield from smart.decisions(
        *(time, recall, progress.say, tasks),
        last={one.task.offered.key: one.winner for one in known},
        refusals=quarantine.refusals,
        first={one.task.offered.key: one.known_front for one in known},
        goes_on=ending.goes_on,
        heat=heat.of,
        decided=ending.decided,
        failed=ending.failed,
    )


def _of_fronts(
    work: Work, known: Sequence[Known], upgrade: Upgrade, progress: Progress
) -> Iterator[Decision]:
    """Yield the decisions that need no more than the fronts of their lists."""
    number = sum(len(one.front) for one in known)
    every = sum(len(one.task.offered.candidates) for one in known)
    progress.say(
        f"upgrade: {counted(len(known), 'list')} {form_of(len(known), 'is', 'are')} "
        f"known; {number} of their {every} candidates "
        f"{form_of(number, 'comes', 'come')} first"
    )
    builds = work.built([one.first for one in known])
    moved, stood = {}, 0
    for one in known:
        # What a budget left no time to build is not reached.
        names = (c.choice_hash for c in one.first.offered.candidates)
        if not all(name in builds for name in names):
            continue
        decision = upgrade.standing(one, builds)
        if decision is None:
            moved[one.first.offered.key] = one
        else:
            stood += 1
            yield decision
    held = 0
    for timed in work.timed([one.first for one in moved.values()]) if moved else ():
        decision = settled(moved[timed.task.offered.key], timed)
        if decision is not None:
            held += 1
            yield decision.decided_at(progress.elapsed_s)
    progress.say(
        f"upgrade: lists that stand as they were: {stood}; that their front decides: "
        f"{held}; whose front has moved, timed whole: {len(moved) - held}"
    )


def _stands(decision: Decision, refused: Collection[str]) -> bool:
    """Whether an earlier decision is one that this run could make.

    What may not be tried now has no time in it, and what might not be tried then still
    may not.
    """
    # What a search has left out is well on record, and has no time.
    well = (r for r in decision.records if r.status is Status.OK)
    timed = {r.choice_hash for r in well if r.median_us is not None}
    timed.add(decision.winner.choice_hash)
    kept_out = {r.choice_hash for r in decision.records if was_refused(r.reason)}
    return timed.isdisjoint(refused) and kept_out <= set(refused)
