"""What a build was expected to take, may take, and took."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flytune.caches.records import TuningRecord
from flytune.tuner.amounts import counted, listed_row, planned, to_compile
from flytune.tuner.budget import HOUR_S, Allowance, Meter
from flytune.tuner.built_kernels import BuiltKernels
from flytune.tuner.candidate import Candidate, TuneTask
from flytune.tuner.decision import Decision
from flytune.tuner.estimate import (
    STAGES,
    Amounts,
    Estimate,
    Spent,
    learned,
    load_now,
    refined,
)
from flytune.tuner.heat import Heat, least_by_ceilings, least_by_profile
from flytune.tuner.journal import Journal
from flytune.tuner.options import BuildOptions
from flytune.tuner.past import LISTED, SPENT, read_past, spent_row
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.rates import CPU, H200
from flytune.tuner.spent_words import (
    estimate_line,
    now_line,
    short_line,
    unreached_line,
)
from flytune.tuner.timed_device import device_of
from flytune.tuner.unreached import is_cut
from flytune.tuner.workers import Farm

_BUSY = 1.1
"""The load from which on it is told."""


class Unaccounted:
    """A build of which nothing is estimated, and that takes what it takes."""

    in_turn = False
    """Whether building and timing want the same cores."""

    def __init__(self) -> None:
        self.allowance = Allowance(None, None, Meter())

    def heat(self, ceilings: Mapping[str, Any], older: Iterable[TuningRecord]) -> Heat:
        """Return how hot lists are, by all that is known of the device.

        Args:
            ceilings: Of this very build, if it has measured them.
            older: What an older bundle has timed.
        """
        del ceilings
        return Heat(lambda _: 0.0, older)

    def listed(
        self,
        choices: Sequence[TuneTask],
        waiting: Iterable[TuneTask],
        journal: Journal,
        heat: Heat,
    ) -> None:
        """Note the lists of the build, and those of them that are to be timed."""

    def begin_tuning(
        self,
        waiting: Sequence[TuneTask],
        farm: Farm,
        heat: Heat,
        progress: Progress,
    ) -> None:
        """Count what is to do, and say what the build is expected to take now."""

    def end_tuning(
        self, decisions: Sequence[Decision], heat: Heat, progress: Progress
    ) -> None:
        """Note what was compiled and timed, and what was not reached."""


class Account(Unaccounted):
    """One build's estimate, budget and spending."""

    def __init__(
        self,
        plan: Plan,
        options: BuildOptions,
        allowance: Allowance,
        planned_s: float,
        met: set[object] | None = None,
    ) -> None:
        """Estimate what a build will take, by what others on the device took.

        Args:
            allowance: What may be spent, from the start that its meter counts from.
            planned_s: What the plan has taken.
            met: As `planned` takes it; None where the build is no fleet's.
        """
        super().__init__()
        self._plan, self._options, self.allowance = plan, options, allowance
        self.in_turn = plan.profile is None
        past = read_past(options.work, plan.work, device_of(plan).name)
        self._past = past
        rates = CPU if plan.profile is None else H200
        self._key = f"{plan.model.name} {plan.policy.name} {options.bake}"
        self._estimator = learned(rates, past.spent, self._key, load_now())
        slots = len(os.sched_getaffinity(0))
        self._amounts = planned(plan, options, past, slots, self.heat({}, ()), met)
        if self._amounts.devices:
            allowance.meter.hold(self._amounts.devices)
        parts = self._estimator.parts(self._amounts)
        self.first = self._estimate(self._amounts, {**parts, "plan": planned_s})
        """Before the start, of all lists."""
        limit_s = allowance.left_s() + allowance.meter.seconds
        self.expected = self.first.within(limit_s)
        """Of as much as the budget allows."""
        self.refined = self.first
        """The same, once the lists are known."""
        self._journal: Journal | None = None
        self._compiled: dict[str, Candidate] = {}
        self._waiting: frozenset[object] = frozenset()
        self._offered = 0
        self._compile_s = self._device_s = 0.0
        self._budget_row: dict[str, Any] | None = None

    def heat(self, ceilings: Mapping[str, Any], older: Iterable[TuningRecord]) -> Heat:
        least = least_by_profile(self._plan.profile, self._options.threads)
        known = ceilings or self._past.ceilings
        return Heat(least_by_ceilings(known, least), (*self._past.library, *older))

    def say(self, progress: Progress) -> None:
        """Say what the build is expected to take, and whether its budget is short."""
        progress.say(estimate_line(self.first))
        if line := short_line(self.first, self.allowance):
            progress.say(line)

    def listed(
        self,
        choices: Sequence[TuneTask],
        waiting: Iterable[TuneTask],
        journal: Journal,
        heat: Heat,
    ) -> None:
        self._journal = journal
        self._waiting = frozenset(task.offered.key for task in waiting)
        self._offered = sum(len(task.offered.candidates) for task in choices)
        if not journal.entries(LISTED):
            journal.add_all([(LISTED, listed_row(choices, heat))])

    def begin_tuning(
        self,
        waiting: Sequence[TuneTask],
        farm: Farm,
        heat: Heat,
        progress: Progress,
    ) -> None:
        store = BuiltKernels(self._plan.work / "built")
        given = (self._plan, self._options, waiting, store.has, farm.capacity(), heat)
        before = self._amounts
        self._amounts = replace(
            counted(*given), enumerated=before.enumerated, offered=self._offered
        )
        for task in waiting:
            self._compiled |= to_compile(task, store.has)
        if self._amounts.devices:
            self.allowance.meter.hold(self._amounts.devices)
        expected = self.refined
        parts = self._estimator.parts(self._amounts)
        now = refined(parts, expected.parts, dict(progress.parts()))
        self.refined = self._estimate(self._amounts, now)
        more_s = self.refined.after_tuning_s - expected.after_tuning_s
        self.allowance.reserve_s += more_s
        progress.say(now_line(self.refined))
        if line := short_line(self.refined, self.allowance):
            progress.say(line)

    def end_tuning(
        self, decisions: Sequence[Decision], heat: Heat, progress: Progress
    ) -> None:
        timed = [
            d for d in decisions if d.task.offered.key in self._waiting and d.was_timed
        ]
        seconds: dict[str, float] = {}
        for decision in timed:
            for record in decision.records:
                seconds[record.choice_hash] = record.compile_s or 0.0
            # Each of its races once: a search has several.
            self._device_s += sum({r.batch_s or 0.0 for r in decision.records})
        names = (candidate.choice_hash for candidate in self._compiled.values())
        compiled = [seconds[name] for name in names if seconds.get(name)]
        self._compile_s = sum(compiled)
        self._amounts = replace(
            self._amounts,
            lists=len(timed),
            compiled=len(compiled),
            timed=sum(r.median_us is not None for d in timed for r in d.records),
            call_s=sum(r.median_us or 0.0 for d in timed for r in d.records) / 1e6,
        )
        budget = self.allowance.budget
        if budget is None:
            return
        pass_us = [heat.pass_us(d.task, d.winner.median_us) for d in decisions]
        left_us = sum(us for us, d in zip(pass_us, decisions, strict=True) if is_cut(d))
        self._budget_row = {
            "asked": budget.text,
            "lists": sum(d.was_choice for d in decisions),
            "unreached": sum(is_cut(d) and not d.was_timed for d in decisions),
            "cut": sum(is_cut(d) and d.was_timed for d in decisions),
            "share": round(left_us / (sum(pass_us) or 1.0), 4),
        }
        if line := unreached_line(self._budget_row):
            progress.say(line)

    def closed(self, progress: Progress) -> dict[str, Any]:
        """Return the provenance's `estimate` and `budget`, the build being over."""
        took_s, meter = progress.elapsed_s, self.allowance.meter
        # Of a fleet's time a model has its own share.
        gpu_s = meter.gpu_seconds * took_s / max(meter.seconds, took_s)
        closed = closed_row(self.expected, self.refined, took_s, gpu_s)
        row = {"estimate": {**closed, "slots": self._amounts.slots}}
        if self._budget_row is not None:
            row["budget"] = self._budget_row
        return row

    def keep(self, progress: Progress) -> None:
        """Write what the build took to its journal, for the estimates of later ones."""
        if self._journal is None:
            return
        stages = {name: seconds for name, seconds in progress.parts() if name in STAGES}
        times = {
            "compile_s": self._compile_s,
            "device_s": self._device_s,
            "load": round(self._estimator.load, 2),
        }
        spent = Spent(self._key, self._amounts, stages, **times)
        self._journal.add_all([(SPENT, spent_row(spent))])

    def _estimate(self, amounts: Amounts, parts: Mapping[str, float]) -> Estimate:
        price = self._options.gpu_hour_price
        estimator = self._estimator
        source, load = estimator.source, estimator.load
        if load > _BUSY:
            source += f", and {load:.1f} processes to run for each core"
        return Estimate(parts, amounts.devices, price, source)


def closed_row(
    expected: Estimate, refined: Estimate, took_s: float, gpu_s: float
) -> dict[str, Any]:
    """Return what a build was expected to take beside what it took.

    Args:
        expected: Before the start.
        refined: Once the lists were known.
        gpu_s: Seconds of all GPUs together.
    """
    hours, price = gpu_s / HOUR_S, expected.price
    return {
        "seconds": round(expected.seconds, 1),
        "refined_s": round(refined.seconds, 1),
        "parts": {name: round(s, 1) for name, s in expected.parts.items()},
        "gpu_hours": round(expected.gpu_hours, 4),
        "cost": _rounded(expected.cost),
        "by": expected.source,
        "took_s": round(took_s, 1),
        "ratio": round(expected.seconds / took_s, 3) if took_s else None,
        "took_gpu_hours": round(hours, 4),
        "took_cost": _rounded(price * hours if price and hours else None),
    }


def _rounded(cost: float | None) -> float | None:
    return None if cost is None else round(cost, 4)
