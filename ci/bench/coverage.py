"""Every candidate of some models for an AMD GPU, compiled where there is none.

`python ci/bench/coverage.py --minutes 8 [--models A,B] [--tp 1,8] [--tokens 1,64,2048]`

`flytune build --compile-only` is run for each model, rank count and type of weights;
what one build compiled the next ones take. What the gates classify, such as a kernel
that wants more shared memory than there is, is counted apart: all else that is not
compiled is a failure. Last comes the exhaustive FlyDSL list of one dense shape.
"""

import functools
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from compiled import compile_model
from pieces import Bench, Pieces, bench_options, numbers
from results import write_result

from flytune.caches.columns import Status
from flytune.caches.device_profile import find_profile

# What the rules say of a candidate, which no compiler could change.
CLASSIFIED = (Status.OVER_RESOURCES, Status.UNSUPPORTED)
MODELS = "Llama-3.1-8B,Llama-3.3-70B,Qwen3-32B"
# Of Llama-3.3-70B's q_proj.
EXHAUSTIVE_MODEL, EXHAUSTIVE_SHAPE = "Llama-3.3-70B", (256, 8192, 8192)
# FlyDSL's dense list of that shape and the library's kernel.
EXHAUSTIVE_CANDIDATES, SLICE = 2000, 250
Row = dict[str, Any]


@click.command()
@bench_options
@click.option("--target", default="mi355x", show_default=True)
@click.option("--models", default=MODELS, show_default=True)
@click.option("--tp", default="1,8", show_default=True, callback=numbers)
@click.option("--quants", default="bf16,mxfp8,mxfp4", show_default=True)
@click.option("--tokens", default="1,64,2048", show_default=True, callback=numbers)
@click.option(
    "--exhaustive",
    default=EXHAUSTIVE_CANDIDATES,
    show_default=True,
    help="Of that list, the first so many; 0 leaves it out.",
)
def main(
    target: str,
    models: str,
    tp: tuple[int, ...],
    quants: str,
    tokens: tuple[int, ...],
    exhaustive: int,
    **where: Any,
) -> None:
    """Compile in pieces, print the counts, and write the result file.

    Exits 1 where a candidate failed.
    """
    bench = Bench("coverage", **where)
    counts = ",".join(map(str, tokens))
    builds = list(itertools.product(quants.split(","), tp, models.split(",")))
    with bench.in_pieces(target=target, tokens=tokens) as pieces:
        rows = [
            _built(bench, pieces, ["--target", target], one, counts) for one in builds
        ]
        wide = list(_exhaustive(bench, pieces, target, exhaustive))
    figures = {
        "target": find_profile(target).product,
        **{"models": models.split(","), "tp": list(tp), "quants": quants.split(",")},
        "tokens": list(tokens),
        **figures_of(rows),
        "exhaustive": exhaustive_of(wide) if wide else None,
    }
    _print(figures)
    shown = [shown_row(row) for row in (*rows, *wide)]
    print(f"wrote {write_result('coverage', bench.slug, figures, shown)}")
    wide_failures = figures["exhaustive"]["failures"] if wide else 0
    raise SystemExit(1 if figures["failures"] or wide_failures else 0)


def _built(
    bench: Bench,
    pieces: Pieces,
    arguments: Sequence[str],
    one: tuple[str, int, str],
    tokens: str,
) -> Row:
    """Return what one build of a model came to."""
    quant, tp, model = one
    asked = {"model": model, "tp": tp, "quant": quant}
    words = itertools.chain(*((f"--{name}", str(asked[name])) for name in asked))
    more = [*words, "--tokens", tokens, *arguments]
    name = f"build {model} tp={tp} {quant} {tokens}"
    made = pieces.unit(name, functools.partial(_timed, bench, more), expected_s=300)
    return {**asked, **made}


def _exhaustive(
    bench: Bench, pieces: Pieces, target: str, candidates: int
) -> Iterable[Row]:
    """Compile the exhaustive list of one shape, a part of it at a time."""
    m, n, k = EXHAUSTIVE_SHAPE
    arguments = ["--model", EXHAUSTIVE_MODEL, "--target", target, "--tokens", str(m)]
    arguments += ["--search", "exhaustive", "--backends", "ATEN,FLYDSL"]
    for first in range(0, candidates, SLICE):
        part = first, min(first + SLICE, candidates)
        compiled = functools.partial(
            _timed, bench, arguments, only=EXHAUSTIVE_SHAPE, candidates=part
        )
        name = f"exhaustive {m}x{n}x{k} {part[0]}-{part[1]}"
        made = pieces.unit(name, compiled, expected_s=300)
        yield {"model": EXHAUSTIVE_MODEL, "candidates": list(part), **made}


def _timed(bench: Bench, arguments: Sequence[str], **held: Any) -> Row:
    """Compile in the benchmark's directory; the bundle itself is thrown away."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=bench.work) as directory:
        out = Path(directory) / "bundle"
        made = compile_model(
            [*arguments, "--compile-only"], bench.work / "builds", out, **held
        )
    return {**made, "wall_s": round(time.perf_counter() - start, 1)}


def figures_of(rows: Iterable[Row]) -> Row:
    """Return the figures of builds: a list that several ask for counts once."""
    rows = list(rows)
    lists = {name: one for row in rows for name, one in row["lists"].items()}
    kinds: dict[str, Counter[str]] = {}
    for one in lists.values():
        for kind, counts in one["counts"].items():
            kinds.setdefault(kind, Counter()).update(counts)
    kernels: dict[str, dict[str, float]] = {}
    for row in rows:
        for backend, some in row["kernels"].items():
            kernels.setdefault(backend, {}).update(some)
    statuses = sum(kinds.values(), Counter[str]())
    return {
        "builds": len(rows),
        "lists": len(lists),
        "candidates": statuses.total(),
        "statuses": dict(statuses),
        "classified": list(CLASSIFIED),
        "failures": failures_in(statuses) + sum(len(r["not_found"]) for r in rows),
        "by_kind": {kind: dict(kinds[kind]) for kind in sorted(kinds)},
        "kernels": {backend: len(some) for backend, some in kernels.items()},
        "compile_core_s": {
            backend: round(sum(some.values())) for backend, some in kernels.items()
        },
        "found_without_compiling": sum(row["found"] for row in rows),
        "wall_s": round(sum(row["wall_s"] for row in rows)),
        "unlisted": _shapes_by_reason(row["unlisted"] for row in rows),
        "declined": _shapes_by_reason(row["declined"] for row in rows),
    }


def _shapes_by_reason(
    found: Iterable[Mapping[str, Sequence[str]]],
) -> dict[str, list[str]]:
    """Return the shapes of each reason, of whatever modules they are."""
    shapes: dict[str, dict[str, None]] = {}
    for one in found:
        for reason, names in one.items():
            some = (name.partition(" at ")[0] for name in names)
            shapes.setdefault(reason, {}).update(dict.fromkeys(some))
    return {reason: list(some) for reason, some in shapes.items()}


def exhaustive_of(rows: Sequence[Row]) -> Row:
    """Return the figures of one list, of which each row is a part."""
    kinds: Counter[str] = Counter()
    reasons: dict[str, None] = {}
    for row in rows:
        for one in row["lists"].values():
            reasons |= dict.fromkeys(one["reasons"])
            for kind, counts in one["counts"].items():
                kinds.update({f"{kind}: {name}": n for name, n in counts.items()})
    statuses = Counter[str]()
    for name, count in kinds.items():
        statuses[name.rpartition(": ")[2]] += count
    seconds = [
        s for row in rows for some in row["kernels"].values() for s in some.values()
    ]
    return {
        "model": EXHAUSTIVE_MODEL,
        "shape": list(EXHAUSTIVE_SHAPE),
        "candidates": statuses.total(),
        "statuses": dict(statuses),
        "failures": failures_in(statuses),
        "compile_core_s": round(sum(seconds)),
        "wall_s": round(sum(row["wall_s"] for row in rows)),
        "reasons": list(reasons),
    }


def failures_in(statuses: Mapping[str, int]) -> int:
    """Count the candidates that no rule classifies and that were not compiled."""
    known = (Status.OK, *CLASSIFIED)
    return sum(count for status, count in statuses.items() if status not in known)


def shown_row(row: Row) -> Row:
    """Return the row of one build without what only tells kernels and lists apart."""
    lists = row["lists"].values()
    counts: dict[str, Counter[str]] = {}
    for one in lists:
        for kind, some in one["counts"].items():
            counts.setdefault(kind, Counter()).update(some)
    reasons = dict.fromkeys(reason for one in lists for reason in one["reasons"])
    told = {k: v for k, v in row.items() if k not in ("lists", "kernels")}
    return {
        **told,
        "lists": len(lists),
        "by_kind": {kind: dict(some) for kind, some in counts.items()},
        "reasons": list(reasons),
        "kernels": {backend: len(some) for backend, some in row["kernels"].items()},
    }


def _print(figures: Mapping[str, Any]) -> None:
    for name in ("builds", "lists", "candidates", "failures", "statuses", "by_kind"):
        print(f"{name}: {figures[name]}")
    print(f"kernels: {figures['kernels']}, core seconds {figures['compile_core_s']}")
    for reason, shapes in figures["unlisted"].items():
        print(f"no list for {len(shapes)} shapes: {reason}")
    if figures["exhaustive"] is not None:
        print(f"exhaustive: {figures['exhaustive']}")


if __name__ == "__main__":
    main()
