"""Stage 6: run the serving program with the decisions in place until nothing is left.

The first pass compiles graphs, sources and libraries into the bake's directory; it
tunes nothing, for the timings file answers. Then fresh processes repeat the run until
one has an empty ledger, because a first hit can still do work that the next finds.

With coordinate descent the graphs of the first pass are thrown away: they were stored
before their kernels were tuned by steps, which a hit would do again (torch 2.11 at each
start). The second pass stores them with what the first one found.

Where kernels may be FlyDSL's, each pass runs the program without them too, for hosts
that lack it: `caches/variants.py`.

Where the policy asks for precompiled entries, a last pass stores them; for the others
Dynamo traces the program, and nothing is left to do but that.
"""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flytune.caches.child import clean_environment, run_module
from flytune.caches.command import CommandSpec
from flytune.caches.inductor import Timing, forget_stored_graphs, write_timings
from flytune.caches.judge import aside_of
from flytune.caches.keys import GraphKey, graph_keys
from flytune.caches.ledger import Kind, Lookup, read_events, read_lookups, summary
from flytune.caches.policy import ServingPolicy
from flytune.caches.verify import SESSION
from flytune.shapes.errors import FlytuneError
from flytune.tuner.command_stages import TIMINGS, refuse_unseen, run_pass
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress

BAKE_SEED = 1


@dataclass(frozen=True, slots=True)
class Bake:
    """What a bake left, and what it says of itself."""

    cache_dir: Path
    passes: tuple[Mapping[str, int], ...]
    """The work of each pass, by kind."""
    remaining: Mapping[str, int]
    """Work that the last pass still did, but for graphs that torch never caches."""
    uncacheable: tuple[str, ...]
    """torch's reasons for graphs that it lowers again in each process."""
    taken: frozenset[tuple[str, str]]
    """Choice hash and inputs' key of each candidate that went into a graph."""
    keys: tuple[GraphKey, ...]
    inductor_config: Mapping[str, str]
    peak_gib: float
    dropped_guards: tuple[str, ...] | None
    """Of Dynamo's, what the stored entries do not check; None where none is stored."""
    ranks: Mapping[str, Any] | None = None
    """Of a command of several: see `ranks_row`."""

    @property
    def settled(self) -> bool:
        """Whether a fresh process had nothing left to do."""
        return not self.remaining

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's form."""
        return {
            "passes": [dict(work) for work in self.passes],
            "settled": self.settled,
            "remaining": dict(self.remaining),
            "uncacheable": list(self.uncacheable),
            "peak_gib": self.peak_gib,
            "dropped_guards": None
            if self.dropped_guards is None
            else list(self.dropped_guards),
            **({} if self.ranks is None else {"ranks": dict(self.ranks)}),
        }


def bake(
    plan: Plan,
    timings: tuple[Timing, ...],
    system: Mapping[str, Any],
    options: BuildOptions,
    progress: Progress,
) -> Bake:
    """Bake into the build's own directory, anew.

    Args:
        timings: Every decision, as Inductor's timings file takes it.
        system: What Inductor names that file after.
        options: Its `bake_passes` are the fresh processes at most, at least 2.

    Raises:
        FlytuneError: the program fails, Inductor tuned although it had decisions, or
            torch caches a graph that holds the bake's weights.
    """
    cache_dir = plan.work / "bake"
    shutil.rmtree(cache_dir, ignore_errors=True)
    cache_dir.mkdir(parents=True)
    (plan.work / TIMINGS).unlink(missing_ok=True)
    if timings:
        written = write_timings(cache_dir, system, timings)
        shutil.copyfile(written, plan.work / TIMINGS)
    passes = _Passes(plan.policy)
    without = plan.policy.without_flydsl()
    policies = [plan.policy, *([] if without is None else [without])]
    descends = bool(plan.policy.inductor.get("coordinate_descent_tuning"))
    # One for the graphs, one for them again, and one that finds nothing to do.
    max_passes = max(options.bake_passes, 3 if descends else 2)
    with progress.stage("bake", 0):
        for number in range(1, max_passes + 1):
            # A hit would tune again what is not stored yet, and overwrite what was
            # found.
            hits = number > (2 if descends else 1)
            how = {"again": hits, "variants": hits}
            results = [
                _run(plan, policy, cache_dir, number, options.space, **how)
                for policy in policies
            ]
            work = passes.add(*results)
            progress.say(f"bake: pass {number}: {_words(work) or 'nothing to do'}")
            if number > 1 and not passes.remaining:
                break
            if descends and number == 1:
                forget_stored_graphs(cache_dir)
                passes.taken.clear()
        dropped = None
        if plan.policy.precompiled:
            # Last, for what is stored then is never looked at again.
            dropped = _precompile(plan, cache_dir, passes, options, progress)
    return Bake(
        cache_dir,
        tuple(passes.work),
        passes.remaining,
        tuple(sorted({k.reason for k in passes.lookups if k.state == "bypass"})),
        frozenset(passes.taken),
        graph_keys(passes.lookups),
        results[0]["inductor_config"],
        max(result["peak_gib"] for result in results),
        dropped,
        results[0].get("ranks"),
    )


@dataclass(slots=True)
class _Passes:
    """What the passes did, one after another."""

    policy: ServingPolicy
    work: list[dict[str, int]] = field(default_factory=list)
    taken: set[tuple[str, str]] = field(default_factory=set)
    lookups: list[Lookup] = field(default_factory=list)
    remaining: dict[str, int] = field(default_factory=dict)
    """Of the last one."""

    @property
    def _aside(self) -> frozenset[Kind]:
        # Dynamo traces in each process but the last, which stores its entries.
        return aside_of(self.policy) | {Kind.TRACED}

    def add(self, *results: Mapping[str, Any]) -> dict[str, int]:
        """Take in a pass, a result a policy, and return its work.

        Raises:
            FlytuneError: Inductor tuned, or a frozen graph was cached.
        """
        done: Counter[str] = Counter()
        left: Counter[str] = Counter()
        for result in results:
            events = read_events(result["ledger"]["events"])
            lookups = read_lookups(result["ledger"]["lookups"])
            refuse_unseen(events)
            work = summary(e for e in events if e.kind not in self._aside)
            done.update(work)
            self.lookups += lookups
            # Of the policy that most hosts serve under, the first.
            if result is results[0]:
                self.taken.update(
                    (e.detail[0], e.detail[1]) for e in events if e.kind is Kind.TAKEN
                )
            _refuse_tuning(events)
            if self.policy.frozen:
                _refuse_cached(lookups)
            left.update(_remaining(work, lookups, self.policy.frozen))
        self.work.append(dict(done))
        self.remaining = dict(left)
        return dict(done)


def _precompile(
    plan: Plan,
    cache_dir: Path,
    passes: _Passes,
    options: BuildOptions,
    progress: Progress,
) -> tuple[str, ...]:
    """Store Dynamo's entries; return the guards that they lack."""
    number = len(passes.work) + 1
    how = {"again": False, "variants": True, "precompile": True}
    result = _run(plan, plan.policy, cache_dir, number, options.space, **how)
    work = _words(passes.add(result)) or "nothing else to do"
    dropped = tuple(result["dropped_guards"])
    progress.say(
        f"bake: pass {number}: precompiled entries, {len(dropped)} guards dropped; "
        f"{work}"
    )
    return dropped


def _run(
    plan: Plan,
    policy: ServingPolicy,
    cache_dir: Path,
    number: int,
    space: str,
    **how: bool,
) -> dict[str, Any]:
    """Run the program once; `how` is as for `session.run`."""
    if isinstance(plan.program, CommandSpec):
        return run_pass(plan, plan.program, policy, cache_dir, number, space)
    assert plan.program is not None, "nothing else is baked"
    result_path = plan.work / f"bake-{number}.json"
    request = {
        "program": plan.program.to_json(),
        "policy": policy.to_json(),
        "seed": BAKE_SEED,
        **how,
        "search": space,
        "keep_descents": number > 1 and plan.profile is not None,
    }
    env = clean_environment(policy, cache_dir)
    run_module(SESSION, request, result_path, env, what="the bake")
    result: dict[str, Any] = json.loads(result_path.read_text())
    result_path.unlink()
    return result


def _refuse_tuning(events: tuple[Any, ...]) -> None:
    tuned = [e for e in events if e.kind is Kind.TUNED]
    if tuned:
        raise FlytuneError(
            f"Inductor tuned in the bake, {len(tuned)} lists were not decided: "
            f"{tuned[0].what}: {', '.join(tuned[0].detail)}",
            hint="--fresh lists the program's candidates anew",
        )


def _refuse_cached(lookups: tuple[Lookup, ...]) -> None:
    cached = [k for k in lookups if k.state != "bypass"]
    if cached:
        raise FlytuneError(
            "torch caches a frozen graph, which holds the bake's random weights: "
            f"{cached[0].layer} {cached[0].key}",
            hint="build under the unfrozen policy",
        )


def _remaining(
    work: Mapping[str, int], lookups: tuple[Lookup, ...], frozen: bool
) -> dict[str, int]:
    """Return the work left, less the graphs that torch itself refuses to cache."""
    left = dict(work)
    if frozen:
        refused = sum(k.layer == "fx" and k.state == "bypass" for k in lookups)
        lowered = left.pop(Kind.LOWERED, 0) - refused
        if lowered > 0:
            left[Kind.LOWERED] = lowered
    return left


def _words(work: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count} {kind.replace('_', ' ')}" for kind, count in work.items()
    )
