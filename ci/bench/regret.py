"""How far flytune's choices are from the best known kernel, and Inductor's beside them.

`python ci/bench/regret.py --minutes 8 [--models A,B] [--tokens 16,256,2048]`

Two builds tune each shape independently; the first is baked. Inductor tunes those of
one token count by itself in a fresh process with an empty cache. The best candidates of
both builds, what was baked and Inductor's pick then race, several times as long as a
build would: the fastest in that race is the best known.
"""

import functools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from peer import peer, pick_in
from pieces import Bench, Pieces, bench_options, numbers
from race import race
from results import write_result
from stages import Shape, linears, run_stages

from flytune.caches.ties import TIE_BAND

NEAR = 1.01
LEADERS = 8
_SIZES = ("tile_shape", "num_stages", "num_warps")
Samples = Mapping[str, Sequence[float]]
NOTE = (
    "1 token is left out: under coordinate descent Inductor lowers a product with a "
    "side of 1 on CUDA without a list, and nothing is chosen"
)


@click.command()
@bench_options
@click.option("--models", default="Llama-3.1-8B,Llama-3.3-70B", show_default=True)
@click.option("--tokens", default="16,256,2048", show_default=True, callback=numbers)
@click.option("--rounds", default=200, show_default=True, help="Of the long race.")
@click.option("--per-build", default=3, show_default=True, help="Token counts.")
@click.option("--shapes", type=int, help="Of each token count, the first so many.")
def main(
    models: str,
    tokens: tuple[int, ...],
    rounds: int,
    per_build: int,
    shapes: int | None,
    **where: Any,
) -> None:
    """Measure in pieces, print with the ratios, and write the result file."""
    bench = Bench("regret", **where)
    if bench.device == "cuda":
        tokens = tuple(count for count in tokens if count > 1)
        print(NOTE)
    names = models.split(",")
    rows: list[dict[str, Any]] = []
    with bench.in_pieces(rounds=rounds, shapes=shapes) as pieces:
        for model in names:
            for at in range(0, len(tokens), per_build):
                counts = tokens[at : at + per_build]
                wanted = {t: linears(model, t)[:shapes] for t in counts}
                rows += _group(bench, pieces, model, wanted, rounds)
    figures = {"models": names, "tokens": list(tokens), **figures_of(rows)}
    if bench.device == "cuda":
        figures["note"] = NOTE
    _print(figures)
    print(f"wrote {write_result('regret', bench.slug, figures, rows)}")


def _group(
    bench: Bench,
    pieces: Pieces,
    model: str,
    wanted: Mapping[int, Sequence[Shape]],
    rounds: int,
) -> list[dict[str, Any]]:
    """Return the rows of what one build covers: shapes by token count."""
    counts = tuple(wanted)
    name = f"{model} {','.join(map(str, counts))}"
    done = f"race {name}"
    rows: list[dict[str, Any]]
    if pieces.has(done):
        rows = pieces.unit(done, list, expected_s=0)
        return rows
    picks = {}
    for count, shapes in wanted.items():
        alone = functools.partial(peer, bench.device, shapes)
        found = pieces.unit(f"peer {model} {count}", alone, expected_s=100)
        picks |= dict(zip(shapes, found, strict=True))
    folder = bench.work / name.replace(" ", "-")
    arguments = bench.build_arguments(model, counts)
    first = _tuned(pieces, f"tune {name}", arguments, folder / "first")
    bake = functools.partial(
        run_stages, arguments, folder / "first", bake=folder / "baked"
    )
    baked = pieces.unit(
        f"bake {name}",
        bake,
        expected_s=120 + 45 * len(counts),
        made=folder / "baked",
    )
    if not baked["verified"]:
        print(f"the bundle is not verified: {name}")
    second = _tuned(
        pieces,
        f"again {name}",
        arguments,
        folder / "second",
        like=Path(first["work"]),
    )
    compared = functools.partial(_compare, model, (baked, second), picks, rounds)
    rows = pieces.unit(done, compared, expected_s=60)
    return rows


def _tuned(
    pieces: Pieces, name: str, arguments: Sequence[str], work: Path, **how: Any
) -> dict[str, Any]:
    build = functools.partial(run_stages, arguments, work, **how)
    result: dict[str, Any] = pieces.unit(name, build, expected_s=150, made=work)
    return result


def _compare(
    model: str,
    tunes: tuple[Mapping[str, Any], Mapping[str, Any]],
    picks: Mapping[Shape, Mapping[str, Any]],
    rounds: int,
) -> list[dict[str, Any]]:
    """Let the candidates of each shape race, and make its row."""
    lists = [first_lists(tune["lists"], picks) for tune in tunes]
    entered, found = {}, {}
    for shape in picks:
        if shape in lists[0] and shape in lists[1] and picks[shape]["lists"]:
            pick = picks[shape]["lists"][-1]["pick"]
            found[shape] = pick_in(lists[0][shape]["candidates"], pick)
            both = lists[0][shape]["candidates"], lists[1][shape]["candidates"]
            entered[shape] = entrants(both, found[shape][0])
    raced = race(tunes[0], entered, rounds)
    rows = []
    for shape in entered:
        offered = lists[0][shape], lists[1][shape]
        row = row_of(offered, raced[shape]["samples"], found[shape], picks[shape])
        rows.append({"model": model, **row, "disturbed": raced[shape]["disturbed"]})
    for shape in picks:
        if shape not in entered:
            print(f"no list with a choice: {model} {shape}")
    return rows


def first_lists(
    lists: Iterable[Mapping[str, Any]], wanted: Iterable[Shape]
) -> dict[Shape, Mapping[str, Any]]:
    """Return the first list of each wanted shape, as `firsts` takes tasks."""
    shapes = set(wanted)
    found: dict[Shape, Mapping[str, Any]] = {}
    for row in lists:
        m, n, k = row["shape"]
        if (m, n, k) in shapes and row["key"][0] != "bmm":
            found.setdefault((m, n, k), row)
    return found


def entrants(
    tunes: Sequence[Sequence[Mapping[str, Any]]], pick: str | None
) -> list[str]:
    """Return the hashes that race: the best of all tunes, and what anybody chose."""
    best: dict[str, float] = {}
    chosen = [] if pick is None else [pick]
    for candidates in tunes:
        for c in candidates:
            if c["winner"] or c.get("baked"):
                chosen.append(c["hash"])
            if c["status"] == "ok" and c["us"] is not None:
                best[c["hash"]] = min(c["us"], best.get(c["hash"], c["us"]))
    leaders = sorted(best, key=best.__getitem__)[:LEADERS]
    # A pick that failed in our own check has no time, and does not race.
    return list(dict.fromkeys([*leaders, *(name for name in chosen if name in best)]))


def row_of(
    offered: Sequence[Mapping[str, Any]],
    samples: Samples,
    found: tuple[str | None, str],
    inductor: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a shape's row: each choice's time over that of the best known."""
    by_hash = {c["hash"]: c for c in offered[0]["candidates"]}
    winners = [
        next(c["hash"] for c in one["candidates"] if c["winner"]) for one in offered
    ]
    baked = next((name for name, c in by_hash.items() if c.get("baked")), None)
    best = min(samples, key=lambda name: statistics.median(samples[name]))
    apart = _over(samples, winners[1], winners[0])
    row: dict[str, Any] = {
        "shape": offered[0]["shape"],
        "module": offered[0]["module"],
        "candidates": len(by_hash),
        "inductor_candidates": inductor["lists"][-1]["candidates"],
        "raced": len(samples),
        "same_winner": winners[0] == winners[1],
        "agree": apart is not None and abs(apart - 1) <= TIE_BAND,
        "winners_apart": apart,
        "peer_found_by": found[1],
        "best": _label(by_hash[best]),
        "best_us": round(statistics.median(samples[best]), 3),
    }
    for who, name in (("winner", winners[0]), ("baked", baked), ("peer", found[0])):
        row[who] = None if name is None else _label(by_hash[name])
        row[f"{who}_over_best"] = None if name is None else _over(samples, name, best)
    return row


def _over(samples: Samples, name: str, other: str) -> float | None:
    """Return the median over the rounds of one candidate's time over another's."""
    if name not in samples or other not in samples:
        return None
    pairs = zip(samples[name], samples[other], strict=True)
    return round(statistics.median(a / b for a, b in pairs), 5)


def _label(candidate: Mapping[str, Any]) -> str:
    """Name a candidate to a person: a template by its tile, stages and warps."""
    config = json.loads(candidate["config"])
    sizes = [config[name].strip("'") for name in _SIZES if name in config]
    return " ".join([candidate["backend"], *(sizes or [candidate["template"]])])


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures; a choice that is not known is not near the best."""
    figures: dict[str, Any] = {"shapes": len(rows)}
    for who, prefix in (("winner", ""), ("baked", "baked_"), ("peer", "peer_")):
        known = [over for row in rows if (over := row[f"{who}_over_best"]) is not None]
        near = sum(over <= NEAR for over in known)
        figures[f"{prefix}share_within_1pct"] = round(near / max(len(rows), 1), 4)
        figures[f"{prefix}known"] = len(known)
        figures[f"{prefix}median_over_best"] = (
            round(statistics.median(known), 4) if known else None
        )
        figures[f"{prefix}worst_over_best"] = max(known, default=None)
    agree = sum(row["agree"] for row in rows)
    figures["agreement"] = round(agree / max(len(rows), 1), 4)
    figures["same_winner"] = sum(row["same_winner"] for row in rows)
    figures["disturbed"] = sum(row["disturbed"] for row in rows)
    ratios = [
        row["peer_over_best"] / row["winner_over_best"]
        for row in rows
        if row["peer_over_best"] and row["winner_over_best"]
    ]
    mean = statistics.geometric_mean(ratios) if ratios else None
    figures["peer_over_winner"] = None if mean is None else round(mean, 4)
    return figures


def _print(figures: Mapping[str, Any]) -> None:
    print(f"{figures['shapes']} shapes; time over the best known:")
    for who, prefix in (("flytune", ""), ("baked", "baked_"), ("Inductor", "peer_")):
        print(
            f"  {who:10} within 1 % {figures[f'{prefix}share_within_1pct']:.0%}, "
            f"median {figures[f'{prefix}median_over_best']}, "
            f"worst {figures[f'{prefix}worst_over_best']}, "
            f"known {figures[f'{prefix}known']}"
        )
    print(f"two tunes agree on {figures['agreement']:.0%}")
    if figures["disturbed"]:
        print(f"the device was disturbed in {figures['disturbed']} races")
    print(f"Inductor's pick takes {figures['peer_over_winner']} x flytune's winner")


if __name__ == "__main__":
    main()
