"""What a run of a program says of its bundle: does it hit, and where not, why."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flytune.caches.keys import GraphKey, explain_miss
from flytune.caches.ledger import (
    ASIDE,
    Event,
    Kind,
    Lookup,
    read_events,
    read_lookups,
    summary,
)
from flytune.caches.ledger_file import ProcessLedger
from flytune.caches.manifest import Manifest
from flytune.caches.policy import ServingPolicy
from flytune.caches.program import ProgramSpec
from flytune.caches.ranks import absent_ranks
from flytune.caches.session import tolerance
from flytune.caches.verdict import Verdict

# What torch writes even on a hit, sources among it: whatever is compiled of one leaves
# a library or a kernel besides.
_HARMLESS = ("locks/", ".lock", ".load_ok", ".py", ".cpp")


def judge(
    result: Mapping[str, Any],
    manifest: Manifest,
    policy: ServingPolicy,
    baked: tuple[GraphKey, ...],
    written: list[str],
) -> Verdict:
    """Turn a session's result into a verdict.

    Args:
        baked: The keys of the bundle's graphs.
        written: Files that the session left in the cache directory.
    """
    events = read_events(result["ledger"]["events"])
    lookups = read_lookups(result["ledger"]["lookups"])
    frozen = policy.frozen
    aside = aside_of(policy)
    refused = tuple(filter(_is_bypass, lookups))
    failures = [
        *_config_differences(manifest, policy, result["inductor_config"]),
        *_missed_graphs(lookups, baked, frozen),
        *_work(
            (e for e in events if e.kind not in aside), len(refused) if frozen else 0
        ),
        *_errors(result["calls"], tolerance(ProgramSpec.from_json(manifest.program))),
        *_unseen(result["ledger"]["graphs"], result["calls"], policy),
    ]
    if not failures:
        failures += _left(written)
    errors = [c[4] for c in result["calls"] if c[4] is not None]
    finite = all(map(math.isfinite, errors))
    return Verdict(
        # A graph may be looked for twice before it is compiled.
        failures=tuple(dict.fromkeys(failures)),
        uncacheable=_uncacheable(refused) if frozen else (),
        work=summary(e for e in events if e.kind not in aside),
        aside=summary(e for e in events if e.kind in aside),
        lookups=_lookup_counts(lookups),
        first_call_s=sum(c[3] for c in result["calls"] if c[2] == "first"),
        worst_error=max(errors, default=0.0) if finite else None,
        peak_gib=result["peak_gib"],
    )


def judge_processes(
    processes: Iterable[ProcessLedger],
    policy: ServingPolicy,
    baked: tuple[GraphKey, ...],
    written: Iterable[str] = (),
) -> Verdict:
    """Turn what the processes of a command did into a verdict.

    Whether its sizes are dynamic is the command's own affair, and counted apart.

    Args:
        baked: The keys of the bundle's graphs.
        written: Files that the command left in the cache directory.
    """
    processes = tuple(processes)
    aside = aside_of(policy) | {Kind.DYNAMIC}
    failures: list[str] = []
    refused: list[Lookup] = []
    for process in processes:
        bypassed = [k for k in process.lookups if _is_bypass(k)]
        refused += bypassed if policy.frozen else []
        work = (event for event in process.events if event.kind not in aside)
        found = [
            *_missed_graphs(process.lookups, baked, policy.frozen),
            *_work(work, len(bypassed) if policy.frozen else 0),
        ]
        failures += [f"{process.name}: {line}" for line in dict.fromkeys(found)]
    failures += _unproved(processes)
    if not failures:
        failures += _left(written)
    events = [event for process in processes for event in process.events]
    lookups = tuple(k for process in processes for k in process.lookups)
    return Verdict(
        failures=tuple(failures),
        uncacheable=_uncacheable(tuple(refused)),
        work=summary(e for e in events if e.kind not in aside),
        aside=summary(e for e in events if e.kind in aside),
        lookups=_lookup_counts(lookups),
        first_call_s=0.0,
        worst_error=None,
        peak_gib=0.0,
        processes=tuple(_process_row(process, aside) for process in processes),
    )


def _unproved(processes: Sequence[ProcessLedger]) -> list[str]:
    """Say of whom nothing is proved, as no graph of his ran."""
    failures = [
        f"{rank} compiled and called no graph, others of its group did"
        for rank in absent_ranks(processes)
    ]
    if not any(process.graphs for process in processes):
        failures.append(
            "no compiled graph ran: the command compiles nothing, or its Python began "
            "with -S, -I or -E"
        )
    return failures


def _process_row(process: ProcessLedger, aside: frozenset[Kind]) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "parent": process.parent,
        "command": list(process.command),
        "rank": process.rank,
        "graphs": process.graphs,
        "work": summary(e for e in process.events if e.kind not in aside),
        "aside": summary(e for e in process.events if e.kind in aside),
        "lookups": _lookup_counts(process.lookups),
    }


def files_below(root: Path) -> frozenset[str]:
    """Return the files below a directory, by their paths in it."""
    return frozenset(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()
    )


def exit_failures(code: int) -> list[str]:
    """Return the failure of a command that ended with this exit code, if any."""
    return [f"the command failed with exit {code}"] if code else []


def aside_of(policy: ServingPolicy) -> frozenset[Kind]:
    """Return the work that proves nothing, as a hit under the policy does it too."""
    aside = ASIDE - {Kind.TRACED} if policy.precompiled else ASIDE
    return aside | {Kind.DYNAMIC} if policy.dynamic else aside


def _is_bypass(lookup: Lookup) -> bool:
    return lookup.layer == "fx" and lookup.state == "bypass"


def _left(written: Iterable[str]) -> list[str]:
    """Name files of work that escaped the ledger, in another process."""
    left = [name for name in written if not _harmless(name)]
    return [f"files were written: {', '.join(left[:4])}"] if left else []


def _config_differences(
    manifest: Manifest, policy: ServingPolicy, live: Mapping[str, str]
) -> list[str]:
    """Compare the whole of Inductor's settings with those of the bake."""
    # Those of the bundle's own policy were kept; another's differ as it says.
    first = manifest.policy.get("inductor", {})
    others = {k: repr(v) for k, v in policy.inductor.items() if first.get(k) != v}
    baked = {**manifest.inductor_config, **others}
    names = sorted(set(baked) | set(live))
    return [
        f"Inductor setting differs: {name}: baked `{baked.get(name, 'absent')}`, "
        f"here `{live.get(name, 'absent')}`"
        for name in names
        if baked.get(name) != live.get(name)
    ]


def _missed_graphs(
    lookups: tuple[Lookup, ...], baked: tuple[GraphKey, ...], frozen: bool
) -> list[str]:
    lines = []
    for lookup in lookups:
        if frozen and lookup.state != "bypass":
            # Its constants are the bake's random weights.
            lines.append(f"a frozen graph was cached: {lookup.layer} {lookup.key}")
        elif not frozen and lookup.state == "bypass":
            lines.append(f"torch refused to cache a graph: {lookup.reason}")
        elif lookup.state == "miss" and lookup.layer == "fx":
            why = "; ".join(explain_miss(lookup, baked))
            lines.append(f"graph missed: {lookup.key[:16]}: {why}")
        elif lookup.state == "miss" and lookup.layer == "dynamo":
            lines.append(f"no precompiled entry: {lookup.key}")
        elif lookup.state == "miss":
            lines.append(f"graph missed in AOTAutograd: {lookup.key[:16]}")
    return lines


def _work(events: Iterable[Event], may_lower: int) -> list[str]:
    lines = []
    lowered = benchmarked = tuned = 0
    for event in events:
        if event.kind is Kind.LOWERED:
            lowered += 1
            if lowered <= may_lower:
                continue
        if event.kind is Kind.BENCHMARKED:
            benchmarked += 1
            continue  # part of `tuned`, which names the list
        line = f"{event.kind}: {event.what or 'unnamed'}"
        if event.kind is Kind.TUNED:
            tuned += 1
            line += f": no time for candidate {', '.join(event.detail)}"
        lines.append(line)
    if benchmarked and not tuned:
        lines.append(f"benchmarked: {benchmarked} times")
    return lines


def _errors(calls: list[Any], limit: float) -> list[str]:
    return [
        f"output differs from eager: {piece} at {tokens} tokens: {error:.3g} "
        f"exceeds {limit:.3g}"
        for piece, tokens, _, _, error in calls
        if error is not None and not error <= limit
    ]


def _unseen(graphs: int, calls: list[Any], policy: ServingPolicy) -> list[str]:
    """Refuse a run in which fewer graphs ran than were called.

    A program that falls back to eager does no work, and would prove nothing. A dynamic
    graph runs for all sizes of a piece.
    """
    first = sum(call[2] == "first" for call in calls)
    if policy.dynamic:
        first = len({call[0] for call in calls})
    if graphs >= first > 0:
        return []
    return [f"graphs that did not run: {first} first calls, {graphs} graphs"]


def _uncacheable(refused: tuple[Lookup, ...]) -> tuple[str, ...]:
    reasons = sorted({k.reason for k in refused})
    return tuple(
        f"{sum(k.reason == reason for k in refused)} graphs lowered again: {reason}"
        for reason in reasons
    )


def _lookup_counts(lookups: tuple[Lookup, ...]) -> dict[str, int]:
    names = [f"{k.layer} {k.state}" for k in lookups]
    return {name: names.count(name) for name in sorted(set(names))}


def _harmless(name: str) -> bool:
    return name.startswith(_HARMLESS) or name.endswith(_HARMLESS)
