"""A program's first calls: with no cache, with torch's mega-cache, with a bundle.

`python ci/bench/first_call.py [--device D] [--model M] [--layers N] [--tokens 1,16]`

With `--layers` the program is a whole model of so many layers, else a decoder layer and
the head, compiled apart. All are the same program under the same policy in fresh
processes of one run, in turn; so is, unless graphs are frozen, a bundle with
precompiled entries, and the program run eagerly, whose first call starts the libraries
that any would wait for. Beside them one that knows nothing of flytune: `torch.compile`
with the mode that tunes. A first call is what a process waits for: loading the cache
or installing the bundle, and the first call of each piece at each size. A bundle's
first process on a host, which puts the files in place, is counted apart. On a CPU both
policies are run.
"""

import functools
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from builds import build_bundle, shortened
from parts import parts_of
from pieces import Bench, Pieces, bench_options, numbers
from processes import fresh
from results import write_result

from flytune.caches import Bundle
from flytune.caches.child import clean_environment
from flytune.caches.expected import CACHES
from flytune.caches.ledger import Kind, read_events
from flytune.caches.policy import CUDA_POLICY, ServingPolicy
from flytune.caches.verify import SESSION

PLAIN, COLD, MEGACACHE, BUNDLE = "plain", "cold", "megacache", "bundle"
PRECOMPILED, EAGER = "precompiled", "eager"
VEHICLES = (PLAIN, COLD, MEGACACHE, BUNDLE, PRECOMPILED, EAGER)
COMPILED = (Kind.CPP_COMPILED, Kind.ISA_PROBED, Kind.TRITON_COMPILED)
WORK = ("tuned", "compiled", "lowered")
_KERNELS = (".so", ".cubin", ".hsaco")
_THREADS, _DISABLE = "TORCHINDUCTOR_COMPILE_THREADS", "TORCH_COMPILE_DISABLE"
Row = dict[str, Any]


@click.command()
@bench_options
@click.option("--model", help="[default: Qwen3-4B on a CPU, else Llama-3.1-8B]")
@click.option(
    "--layers",
    type=click.IntRange(min=0),
    help="Of a whole model; 0: a layer and the head.  [default: 0 on a CPU, else 2]",
)
@click.option("--tokens", help="[default: 1,16 on a CPU, else 64]")
@click.option("--policies", help="Of a CPU.  [default: unfrozen,frozen]")
@click.option("--rounds", default=3, show_default=True, help="Of each; cold has one.")
@click.option("--steady", default=30, show_default=True, help="Calls of each size.")
def main(
    model: str | None,
    layers: int | None,
    tokens: str | None,
    policies: str | None,
    rounds: int,
    steady: int,
    **where: Any,
) -> None:
    """Measure in pieces, print the table with ratios, and write the result file."""
    bench = Bench("first_call", **where)
    on_cpu = bench.device == "cpu"
    model = model or ("Qwen3-4B" if on_cpu else "Llama-3.1-8B")
    tokens = tokens or ("1,16" if on_cpu else "64")
    names = (policies or "unfrozen,frozen").split(",") if on_cpu else [CUDA_POLICY]
    layers = (0 if on_cpu else 2) if layers is None else layers
    what = {"model": model, "layers": layers, "tokens": tokens}
    options = {**what, "steady": steady}
    rows: list[Row] = []
    figures: dict[str, Any] = dict(what)
    with bench.in_pieces(**options) as pieces:
        for name in names:
            how = _How(bench, pieces, name, steady)
            measured = how.measure(model, layers, numbers(None, None, tokens), rounds)
            rows += measured
            figures[name] = figures_of(measured)
            _print(name, figures[name])
    if not on_cpu:
        # One policy: its figures are the benchmark's.
        figures |= {"policy": CUDA_POLICY, **figures.pop(CUDA_POLICY)}
    print(f"wrote {write_result('first_call', bench.slug, figures, rows)}")


class _How:
    """The runs of one policy."""

    def __init__(self, bench: Bench, pieces: Pieces, policy: str, steady: int) -> None:
        self._bench, self._pieces = bench, pieces
        self._name, self._steady = policy, steady
        self._folder = bench.work / policy
        self._mega = bench.work / f"{policy}-cold" / "mega"
        self._installed = {
            vehicle: bench.work / f"{policy}-installed-{vehicle}"
            for vehicle in (BUNDLE, PRECOMPILED)
        }

    def measure(
        self, model: str, layers: int, tokens: tuple[int, ...], rounds: int
    ) -> list[Row]:
        """Return a row a process: the plain, the cold one, and then hits in turn."""
        if layers:
            model = str(shortened(model, layers, self._bench.work))
        more = ("--bake", "model") if layers else ()
        built = functools.partial(self._built, model, tokens)
        bundles = {BUNDLE: built(BUNDLE, more)}
        if self._name != "frozen":
            earlier = ("--from", str(bundles[BUNDLE].path), "--precompiled")
            bundles[PRECOMPILED] = built(PRECOMPILED, (*more, *earlier))
        plain = bundles[BUNDLE]
        rows = [self._unit(plain, PLAIN, 0), self._unit(plain, COLD, 0)]
        rows += [self._unit(one, vehicle, 0) for vehicle, one in bundles.items()]
        for round_ in range(1, rounds + 1):
            for vehicle in (MEGACACHE, *bundles, EAGER):
                bundle = bundles.get(vehicle, plain)
                rows.append(self._unit(bundle, vehicle, round_))
        return rows

    def _built(
        self, model: str, tokens: tuple[int, ...], kind: str, more: tuple[str, ...]
    ) -> Bundle:
        folder = self._folder / kind
        device = self._bench.device
        policy = self._name if device == "cpu" else None
        build = functools.partial(
            _build, model, tokens, policy, folder, ("--device", device, *more)
        )
        built = self._pieces.unit(
            f"build {self._name} {kind}", build, expected_s=240, made=folder
        )
        if not built["verified"]:
            print(f"the {kind} is not verified: it does work that a hit would not")
        return Bundle.open(folder / "bundle")

    def _unit(self, bundle: Bundle, vehicle: str, round_: int) -> Row:
        made = {COLD: self._mega.parent, **self._installed}
        row: Row = self._pieces.unit(
            f"{vehicle} {self._name} {round_}",
            functools.partial(self._run, bundle, vehicle),
            expected_s=120 if vehicle in (PLAIN, COLD) else 40,
            # What the first of a kind leaves the later ones take.
            made=made.get(vehicle) if round_ == 0 else None,
        )
        return {"policy": self._name, "round": round_, **row}

    def _run(self, bundle: Bundle, vehicle: str) -> Row:
        """Run the bundle's program once in a fresh process.

        Its caches are in an empty directory, or in that of an installed bundle.
        """
        place = self._bench.work / "place"
        shutil.rmtree(place, ignore_errors=True)
        request, env = self._request(bundle, vehicle, place / CACHES)
        result = fresh(SESSION, request, env, what=f"the {vehicle} run")
        row = {"vehicle": vehicle, **row_of(result)}
        if vehicle in (PLAIN, COLD):
            # Other processes compiled too, which no ledger of this one sees.
            row["compiled"] = max(row["compiled"], kernels_in(place))
        return row

    def _request(
        self, bundle: Bundle, vehicle: str, caches: Path
    ) -> tuple[Row, dict[str, str]]:
        policy = ServingPolicy.from_json(bundle.manifest.policy)
        if vehicle == PLAIN and self._bench.device != "cpu":
            policy = replace(policy, inductor={})
        request: Row = {
            "program": dict(bundle.manifest.program),
            "policy": policy.to_json(),
            "seed": 7,
            "again": False,
            "variants": False,
            "steady": self._steady,
        }
        if vehicle == PLAIN:
            request["mode"] = CUDA_POLICY
        # The cold run makes the mega-cache that the next ones load.
        if vehicle == COLD:
            request["save"] = str(self._mega)
        if vehicle in self._installed:
            into = self._installed[vehicle] / "bundle"
            request["install"] = [str(bundle.path), str(into)]
        if vehicle == MEGACACHE and self._mega.exists():
            request["load"] = str(self._mega)
        env = clean_environment(policy, caches)
        if vehicle in (PLAIN, COLD) and self._bench.device != "cpu":
            # All that torch would use: many candidates in one process take minutes.
            del env[_THREADS]
        if vehicle == EAGER:
            env[_DISABLE] = "1"
        return request, env


def _build(
    model: str,
    tokens: tuple[int, ...],
    policy: str | None,
    folder: Path,
    more: Sequence[str],
) -> Row:
    """Build the bundle below a folder; return what a build of it says."""
    counts = ",".join(map(str, tokens))
    start = time.perf_counter()
    out, work = folder / "bundle", folder / "work"
    bundle = build_bundle(model, counts, policy, out, work=work, more=more)
    return {
        "build_s": round(time.perf_counter() - start, 1),
        "passes": list(bundle.manifest.bake["passes"]),
        "verified": bool(bundle.manifest.verify and bundle.manifest.verify["ok"]),
    }


def kernels_in(place: Path) -> int:
    """Return how many compiled kernels lie in a place."""
    return sum(path.suffix in _KERNELS for path in place.rglob("*"))


def row_of(result: Mapping[str, Any]) -> Row:
    """Return one process's row of what its session says."""
    kinds = [event.kind for event in read_events(result["ledger"]["events"])]
    calls_s = sum(call[3] for call in result["calls"] if call[2] == "first")
    ready_s = result["load_s"]
    later: dict[str, dict[str, list[float]]] = {"steady": {}, "device": {}}
    for piece, tokens, round_, seconds, _ in result["calls"]:
        if round_ in later:
            later[round_].setdefault(f"{piece} {tokens}", []).append(1e6 * seconds)
    return {
        "first_call_s": round(calls_s + ready_s, 3),
        "parts_s": parts_of(result["compile_s"], calls_s, ready_s),
        **{
            f"{round_}_us": {
                name: round(statistics.median(some), 1) for name, some in times.items()
            }
            for round_, times in later.items()
        },
        "tuned": kinds.count(Kind.TUNED),
        "compiled": sum(kinds.count(kind) for kind in COMPILED),
        "lowered": kinds.count(Kind.LOWERED),
        "descended": kinds.count(Kind.COORDINATE_DESCENT),
        "megacache_bytes": result["saved_bytes"],
        "peak_gib": round(result["peak_gib"], 2),
    }


def figures_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return one policy's figures; times are medians over the rounds."""
    by_vehicle = {
        vehicle: some
        for vehicle in VEHICLES
        if (some := [row for row in rows if row["vehicle"] == vehicle])
    }
    figures: dict[str, Any] = {
        f"{vehicle}_first_s": some.pop(0)["first_call_s"]
        for vehicle, some in by_vehicle.items()
        if vehicle in (BUNDLE, PRECOMPILED)
    }
    figures |= {
        f"{vehicle}_s": statistics.median(row["first_call_s"] for row in some)
        for vehicle, some in by_vehicle.items()
    }
    last = by_vehicle[BUNDLE][-1]
    figures |= {name: last[name] for name in WORK}
    figures["megacache_bytes"] = by_vehicle[COLD][0]["megacache_bytes"]
    for vehicle in by_vehicle:
        if vehicle == BUNDLE:
            continue
        ratio = figures[f"{vehicle}_s"] / figures["bundle_s"]
        figures[f"{vehicle}_over_bundle"] = round(ratio, 2)
        figures[f"{vehicle}_work"] = {n: by_vehicle[vehicle][-1][n] for n in WORK}
    figures["parts_s"] = {
        vehicle: {
            part: round(statistics.median(row["parts_s"][part] for row in some), 3)
            for part in some[0]["parts_s"]
        }
        for vehicle, some in by_vehicle.items()
    }
    dynamo_s = figures["parts_s"][BUNDLE]["dynamo"]
    figures["non_dynamo_s"] = round(figures["bundle_s"] - dynamo_s, 3)
    for kind in ("steady_us", "device_us"):
        figures[kind] = {
            name: {
                vehicle: statistics.median(row[kind][name] for row in some)
                for vehicle, some in by_vehicle.items()
            }
            for name in last[kind]
        }
    return figures


def _print(policy: str, figures: Mapping[str, Any]) -> None:
    print(f"policy {policy}")
    for vehicle in figures["parts_s"]:
        if vehicle == BUNDLE:
            continue
        print(
            f"  {vehicle:11} {figures[f'{vehicle}_s']:8.2f} s  "
            f"{figures[f'{vehicle}_over_bundle']:6.2f} x the bundle's  "
            f"{figures[f'{vehicle}_work']}"
        )
    work = {name: figures[name] for name in WORK}
    print(f"  {BUNDLE:11} {figures['bundle_s']:8.2f} s  {'':23}{work}")
    for vehicle in (BUNDLE, PRECOMPILED):
        if f"{vehicle}_first_s" in figures:
            seconds = figures[f"{vehicle}_first_s"]
            print(f"  {vehicle:11} {seconds:8.2f} s  in a host's first process")
    if not figures["megacache_bytes"]:
        print("  torch saves no mega-cache under this policy")
    for vehicle, parts in figures["parts_s"].items():
        words = ", ".join(f"{part} {seconds:.2f}" for part, seconds in parts.items())
        print(f"  {vehicle:11} {words}")
    for kind, words in (("steady_us", "a step"), ("device_us", "a step on the device")):
        for name, us in figures[kind].items():
            print(
                f"  {words} of {name}: {us[BUNDLE]:.0f} us from the bundle, "
                f"{us[PLAIN]:.0f} us plain: {us[PLAIN] / us[BUNDLE]:.3f} x"
            )


if __name__ == "__main__":
    main()
