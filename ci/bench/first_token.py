"""A model's first token after it is loaded: with no cache, mega-cache, or a bundle.

`python ci/bench/first_token.py [--device D] [--model M] [--layers N] [--prompt 64]`

A whole model of transformers, once compiled as one graph and once layer by layer, in
fresh processes of one run, in turn, under the policy of the bundle. The clock starts
when the model is in memory and stops when the first token is known; loading the cache
or installing the bundle comes before, and counts. Beside them the model run eagerly,
which shows what libraries take to start. Done in pieces, as `first_call.py` is.
"""

import functools
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from builds import build_bundle, shortened
from first_call import kernels_in
from pieces import Bench, Pieces, bench_options
from processes import fresh
from results import RESULTS, write_result

from flytune.caches import Bundle
from flytune.caches.child import clean_environment
from flytune.caches.expected import CACHES
from flytune.caches.policy import ServingPolicy

COLD, MEGACACHE, BUNDLE, EAGER = "cold", "megacache", "bundle", "eager"
VEHICLES = (COLD, MEGACACHE, BUNDLE, EAGER)
HOWS = ("layers", "whole")
_THREADS, _DISABLE = "TORCHINDUCTOR_COMPILE_THREADS", "TORCH_COMPILE_DISABLE"
_SEED = 7
Row = dict[str, Any]


@click.command()
@bench_options
@click.option("--model", default="Llama-3.1-8B", show_default=True)
@click.option("--layers", type=click.IntRange(min=1), help="[default: the model's]")
@click.option("--prompt", type=click.IntRange(min=1), default=64, show_default=True)
@click.option(
    "--bake",
    "hows",
    type=click.Choice(HOWS),
    multiple=True,
    default=HOWS,
    show_default=True,
    help="What one graph holds; may be given again.",
)
@click.option("--rounds", default=3, show_default=True, help="Of each; cold has one.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS)
def main(
    model: str,
    layers: int | None,
    prompt: int,
    hows: tuple[str, ...],
    rounds: int,
    results: Path,
    **where: Any,
) -> None:
    """Measure in pieces, print the seconds with ratios, and write the result file."""
    bench = Bench("first_token", **where)
    what = {"model": model, "depth": layers, "prompt": prompt}
    rows: list[Row] = []
    with bench.in_pieces(**what) as pieces:
        named = model if layers is None else str(shortened(model, layers, bench.work))
        for how in hows:
            rows += _How(bench, pieces, how, prompt).measure(named, rounds)
    by_how = {how: [row for row in rows if row["how"] == how] for how in hows}
    figures = {**what, **{how: figures_of(some) for how, some in by_how.items()}}
    for how in hows:
        _print(how, figures[how])
    path = write_result("first_token", bench.slug, figures, rows, results)
    print(f"wrote {path}")


class _How:
    """The runs of a model that is compiled in one of the two ways."""

    def __init__(self, bench: Bench, pieces: Pieces, how: str, prompt: int) -> None:
        self._bench, self._pieces = bench, pieces
        self._how, self._prompt = how, prompt
        self._mega = bench.work / f"{how}-cold" / "mega"
        self._installed = bench.work / f"{how}-installed"

    def measure(self, model: str, rounds: int) -> list[Row]:
        """Return a row a process: cold, a host's first, and then hits in turn."""
        folder = self._bench.work / f"{self._how}-built"
        arguments = ("--device", self._bench.device, "--bake", self._how)
        build = functools.partial(
            _build, model, str(self._prompt), folder, self._bench.device, arguments
        )
        name = f"build {self._how}"
        if not self._pieces.unit(name, build, expected_s=400, made=folder)["verified"]:
            print(f"{self._how}: the bundle is not verified")
        bundle = Bundle.open(folder / "bundle")
        rows = [self._unit(bundle, vehicle, 0) for vehicle in (COLD, BUNDLE)]
        for round_ in range(1, rounds + 1):
            for vehicle in (MEGACACHE, BUNDLE, EAGER):
                rows.append(self._unit(bundle, vehicle, round_))
        return rows

    def _unit(self, bundle: Bundle, vehicle: str, round_: int) -> Row:
        made = {COLD: self._mega.parent, BUNDLE: self._installed}
        row: Row = self._pieces.unit(
            f"{vehicle} {self._how} {round_}",
            functools.partial(self._run, bundle, vehicle),
            expected_s=240 if vehicle == COLD else 60,
            # What the first of a kind leaves the later ones take.
            made=made.get(vehicle) if round_ == 0 else None,
        )
        return {"how": self._how, "vehicle": vehicle, "round": round_, **row}

    def _run(self, bundle: Bundle, vehicle: str) -> Row:
        """Serve a first token in a fresh process, its caches in an empty directory."""
        place = self._bench.work / "place"
        shutil.rmtree(place, ignore_errors=True)
        policy = ServingPolicy.from_json(bundle.manifest.policy)
        request: Row = {
            "program": dict(bundle.manifest.program),
            "policy": policy.to_json(),
            "seed": _SEED,
            "tokens": self._prompt,
        }
        env = clean_environment(policy, place / CACHES)
        if vehicle == COLD:
            request["save"] = str(self._mega)
            if self._bench.device != "cpu":
                # All that torch would use: many candidates in one process take minutes.
                del env[_THREADS]
        elif vehicle == BUNDLE:
            request["install"] = [str(bundle.path), str(self._installed / "bundle")]
        elif vehicle == MEGACACHE and self._mega.exists():
            request["load"] = str(self._mega)
        elif vehicle == EAGER:
            env[_DISABLE] = "1"
        row = row_of(fresh("serve_token", request, env, what=f"the {vehicle} run"))
        if vehicle == COLD:
            # Other processes compiled too, which no ledger of this one sees.
            row["compiled"] = max(row["compiled"], kernels_in(place))
        return row


def _build(
    model: str, tokens: str, folder: Path, device: str, arguments: tuple[str, ...]
) -> Row:
    policy = "unfrozen" if device == "cpu" else None
    # Not within: a build that was stopped goes on from there.
    out, work = folder / "bundle", folder.with_name(f"{folder.name}-work")
    bundle = build_bundle(model, tokens, policy, out, work=work, more=arguments)
    manifest = bundle.manifest
    verified = bool(manifest.verify and manifest.verify["ok"])
    return {"verified": verified, "passes": list(manifest.bake["passes"])}


def row_of(result: Mapping[str, Any]) -> Row:
    """Return one process's row of what it says; seconds are from load to token."""
    compiled = sum(n for kind, n in result["work"].items() if "compiled" in kind)
    return {
        "first_token_s": round(result["ready_s"] + result["first_token_s"], 3),
        "ready_s": round(result["ready_s"], 3),
        "second_s": round(result["second_s"], 4),
        "rel_error": result["rel_error"],
        "lowered": result["work"].get("lowered", 0),
        "tuned": result["work"].get("tuned", 0),
        "compiled": compiled,
        "traced": result["work"].get("traced", 0),
        "megacache_bytes": result["saved_bytes"],
    }


def figures_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of one way to compile; times are medians over the rounds.

    A host's first process, which puts the bundle's files in place, is counted apart.
    """
    figures: dict[str, Any] = {}
    for vehicle in VEHICLES:
        some = [row for row in rows if row["vehicle"] == vehicle]
        if vehicle == BUNDLE:
            figures["bundle_first_s"] = some.pop(0)["first_token_s"]
        seconds = statistics.median(row["first_token_s"] for row in some)
        figures[f"{vehicle}_s"] = seconds
        work = ("lowered", "tuned", "compiled", "traced")
        figures[f"{vehicle}_work"] = {name: some[-1][name] for name in work}
    for vehicle in (COLD, MEGACACHE, EAGER):
        ratio = figures[f"{vehicle}_s"] / figures["bundle_s"]
        figures[f"{vehicle}_over_bundle"] = round(ratio, 2)
    figures["megacache_bytes"] = max(row["megacache_bytes"] for row in rows)
    figures["worst_error"] = max(row["rel_error"] for row in rows)
    return figures


def _print(how: str, figures: Mapping[str, Any]) -> None:
    print(f"{how}: largest difference from eager {figures['worst_error']:.4f}")
    for vehicle in VEHICLES:
        ratio = figures.get(f"{vehicle}_over_bundle")
        beside = "" if ratio is None else f"{ratio:.2f} x the bundle's"
        seconds, work = figures[f"{vehicle}_s"], figures[f"{vehicle}_work"]
        print(f"  {vehicle:10} {seconds:8.2f} s  {beside:20} {work}")
    print(
        f"  {BUNDLE:10} {figures['bundle_first_s']:8.2f} s  in a host's first process"
    )
    if not figures["megacache_bytes"]:
        print("  torch saves no mega-cache under this policy")


if __name__ == "__main__":
    main()
