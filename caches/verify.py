"""Prove that a bundle hits: run its program in a fresh process and count the work.

The process has an empty cache directory plus the bundle's files, the bundle's policy
and other weights than the bake's. Whatever it compiles, tunes or lowers is a failure
that is named with the part of the key that differs.
"""

import functools
import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.bundle import Bundle
from flytune.caches.child import clean_environment, run_module
from flytune.caches.directories import TRITON_DIR
from flytune.caches.expected import CACHES
from flytune.caches.keys import KEYS_NAME, GraphKey, explain_miss, read_keys
from flytune.caches.ledger import (
    ASIDE,
    Event,
    Kind,
    Lookup,
    read_events,
    read_lookups,
    summary,
)
from flytune.caches.manifest import Manifest
from flytune.caches.policy import ServingPolicy
from flytune.caches.program import ProgramSpec
from flytune.caches.session import tolerance
from flytune.caches.several import program_name, singles
from flytune.caches.target import PartStatus, Target
from flytune.caches.triton_cache import relocate
from flytune.caches.trust import HERE, Trust, admit
from flytune.caches.variants import Variant, compare_parts, variants_here
from flytune.caches.verdict import Verdict, both, every, of_program, refused_bundle

# Any seed but the bake's: a graph that holds its weights would then be found out.
VERIFY_SEED = 20_000
SESSION = "flytune.caches.session"
# What torch writes even on a hit, sources among it: whatever is compiled of one leaves
# a library or a kernel besides.
_HARMLESS = ("locks/", ".lock", ".load_ok", ".py", ".cpp")


def verify(bundle: Bundle, trust: Trust = HERE) -> Verdict:
    """Run the bundle's program in a fresh process and judge what it did.

    Raises:
        UntrustedError: nobody vouches for the bundle here.
        FlytuneError: the bundle is corrupt, was built for another target, or its
            program cannot run here.
    """
    admit(bundle, trust)
    manifest = bundle.manifest
    if manifest.compiled_only:
        return refused_bundle(
            ("nothing is baked: the bundle holds kernels for a build",)
        )
    wrong = target_misses(manifest)
    if wrong:
        return refused_bundle(tuple(f"target differs: {line}" for line in wrong))
    with tempfile.TemporaryDirectory(prefix="flytune-verify-") as directory:
        placed = Path(directory) / "bundle"
        bundle.place(placed)
        return verify_directory(placed, manifest)


def target_misses(manifest: Manifest) -> tuple[str, ...]:
    """Return the parts of this host that rule the bundle out, one line each."""
    kind = str(manifest.target["hardware"].get("kind"))
    live = Target.live(kind, threads=manifest.policy.get("threads"))
    parts = compare_parts(manifest, live)
    return tuple(str(p) for p in parts if p.status is PartStatus.MISS)


def verify_directory(placed: Path, manifest: Manifest) -> Verdict:
    """Run the program of a bundle's unpacked files, which may be changed by it.

    Where the bundle serves with FlyDSL and without, both are run if it is here. Of a
    merged bundle each program is run, in a process of its own.
    """
    cache_dir = placed / CACHES
    cache_dir.mkdir(exist_ok=True)
    relocate(cache_dir / TRITON_DIR)
    programs = singles(manifest)
    verdicts = []
    for program in programs:
        runs = [_run(placed, program, one) for one in variants_here(program)]
        verdict = functools.reduce(both, runs)
        whose = f"{program_name(program)}: " if len(programs) > 1 else ""
        verdicts.append(of_program(verdict, whose))
    return functools.reduce(every, verdicts)


def _run(placed: Path, manifest: Manifest, variant: Variant) -> Verdict:
    """Run the program as one variant of the bundle is served."""
    cache_dir = placed / CACHES
    before = _files(cache_dir)
    result_path = placed / "result.json"
    request = {
        "program": dict(manifest.program),
        "policy": variant.policy.to_json(),
        "seed": VERIFY_SEED,
        "without": variant.without,
    }
    env = clean_environment(variant.policy, cache_dir)
    run_module(SESSION, request, result_path, env, what="the verified program")
    result = json.loads(result_path.read_text())
    baked = read_keys(placed / KEYS_NAME) if (placed / KEYS_NAME).exists() else ()
    written = sorted(_files(cache_dir) - before)
    found = judge(result, manifest, variant.policy, baked, written)
    return of_program(found, "".join(f"without {name}: " for name in variant.without))


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
    aside = ASIDE - {Kind.TRACED} if policy.precompiled else ASIDE
    refused = tuple(k for k in lookups if k.layer == "fx" and k.state == "bypass")
    failures = [
        *_config_differences(manifest, policy, result["inductor_config"]),
        *_missed_graphs(lookups, baked, frozen),
        *_work(
            (e for e in events if e.kind not in aside), len(refused) if frozen else 0
        ),
        *_errors(result["calls"], tolerance(ProgramSpec.from_json(manifest.program))),
        *_unseen(result["ledger"]["graphs"], result["calls"]),
    ]
    # Work that escaped the ledger, in another process, leaves its files.
    if not failures and (left := [f for f in written if not _harmless(f)]):
        failures.append(f"files were written: {', '.join(left[:4])}")
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


def _unseen(graphs: int, calls: list[Any]) -> list[str]:
    """Refuse a run in which fewer graphs ran than were called.

    A program that falls back to eager does no work, and would prove nothing.
    """
    first = sum(call[2] == "first" for call in calls)
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


def _files(root: Path) -> frozenset[str]:
    return frozenset(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()
    )


def _harmless(name: str) -> bool:
    return name.startswith(_HARMLESS) or name.endswith(_HARMLESS)
