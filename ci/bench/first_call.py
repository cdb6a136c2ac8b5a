"""A program's first calls: with no cache, with torch's mega-cache, with the bundle.

`python ci/bench/first_call.py [--model M] [--tokens 1,16] [--rounds 3]`

All three are the same program under the same policy in fresh processes of one run, in
turn. A first call is what a process waits for: loading the cache, and the first call of
each piece at each size. Both CPU policies are run.
"""

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from builds import build_bundle
from results import write_result

from flytune.caches import Bundle
from flytune.caches.child import clean_environment, run_module
from flytune.caches.ledger import Kind, read_events
from flytune.caches.placing import CACHES
from flytune.caches.policy import ServingPolicy
from flytune.caches.target import Target
from flytune.caches.verify import SESSION

POLICIES = ("unfrozen", "frozen")
COLD, MEGACACHE, BUNDLE = "cold", "megacache", "bundle"
COMPILED = (Kind.CPP_COMPILED, Kind.ISA_PROBED, Kind.TRITON_COMPILED)


@click.command()
@click.option("--model", default="Qwen3-4B", show_default=True)
@click.option("--tokens", default="1,16", show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Of each; cold has one.")
def main(model: str, tokens: str, rounds: int) -> None:
    """Measure, print the table with ratios, and write the result file."""
    figures: dict[str, Any] = {"model": model, "tokens": tokens}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        for policy in POLICIES:
            bundle = build_bundle(model, tokens, policy, Path(directory) / policy)
            measured = _measure(bundle, policy, rounds, Path(directory))
            rows += measured
            figures[policy] = _figures(measured)
            _print(policy, figures[policy])
    slug = Target.here(threads=len(os.sched_getaffinity(0))).slug
    print(f"wrote {write_result('first_call', slug, figures, rows)}")


def _measure(
    bundle: Bundle, policy: str, rounds: int, directory: Path
) -> list[dict[str, Any]]:
    mega = directory / f"{policy}.mega"
    rows = []
    for round_ in range(rounds):
        for vehicle in (COLD, MEGACACHE, BUNDLE):
            if vehicle == COLD and round_:
                continue
            row = _run(bundle, vehicle, directory, mega)
            rows.append({"policy": policy, "round": round_, **row})
    return rows


def _run(bundle: Bundle, vehicle: str, directory: Path, mega: Path) -> dict[str, Any]:
    """Run the bundle's program once in a fresh process with an empty directory."""
    policy = ServingPolicy.from_json(bundle.manifest.policy)
    place = directory / "place"
    shutil.rmtree(place, ignore_errors=True)
    start = time.perf_counter()
    if vehicle == BUNDLE:
        bundle.place(place)
    placed_s = time.perf_counter() - start
    request = {
        "program": dict(bundle.manifest.program),
        "policy": policy.to_json(),
        "seed": 7,
        # The cold run makes the mega-cache that the next ones load.
        "save": str(mega) if vehicle == COLD else None,
        "load": str(mega) if vehicle == MEGACACHE and mega.exists() else None,
    }
    result_path = directory / "result.json"
    env = clean_environment(policy, place / CACHES)
    run_module(SESSION, request, result_path, env, what=f"the {vehicle} run")
    result = json.loads(result_path.read_text())
    return {"vehicle": vehicle, **_row(result, placed_s)}


def _row(result: Mapping[str, Any], placed_s: float) -> dict[str, Any]:
    kinds = [event.kind for event in read_events(result["ledger"]["events"])]
    calls = sum(call[3] for call in result["calls"] if call[2] == "first")
    return {
        "first_call_s": round(calls + result["load_s"] + placed_s, 3),
        "tuned": kinds.count(Kind.TUNED),
        "compiled": sum(kinds.count(kind) for kind in COMPILED),
        "lowered": kinds.count(Kind.LOWERED),
        "megacache_bytes": result["saved_bytes"],
        "peak_gib": round(result["peak_gib"], 2),
    }


def _figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    by_vehicle = {
        vehicle: [row for row in rows if row["vehicle"] == vehicle]
        for vehicle in (COLD, MEGACACHE, BUNDLE)
    }
    figures: dict[str, Any] = {
        f"{vehicle}_s": statistics.median(row["first_call_s"] for row in some)
        for vehicle, some in by_vehicle.items()
    }
    last = by_vehicle[BUNDLE][-1]
    figures |= {name: last[name] for name in ("tuned", "compiled", "lowered")}
    figures["megacache_bytes"] = by_vehicle[COLD][0]["megacache_bytes"]
    for vehicle in (COLD, MEGACACHE):
        ratio = figures[f"{vehicle}_s"] / figures["bundle_s"]
        figures[f"{vehicle}_over_bundle"] = round(ratio, 2)
        some = by_vehicle[vehicle][-1]
        figures[f"{vehicle}_work"] = {
            name: some[name] for name in ("tuned", "compiled", "lowered")
        }
    return figures


def _print(policy: str, figures: Mapping[str, Any]) -> None:
    print(f"policy {policy}")
    for vehicle in (COLD, MEGACACHE):
        work = figures[f"{vehicle}_work"]
        print(
            f"  {vehicle:10} {figures[f'{vehicle}_s']:8.2f} s  "
            f"{figures[f'{vehicle}_over_bundle']:6.2f} x the bundle's  {work}"
        )
    work = {name: figures[name] for name in ("tuned", "compiled", "lowered")}
    print(f"  {BUNDLE:10} {figures['bundle_s']:8.2f} s  {'':23}{work}")
    if not figures["megacache_bytes"]:
        print("  torch saves no mega-cache under this policy")


if __name__ == "__main__":
    main()
