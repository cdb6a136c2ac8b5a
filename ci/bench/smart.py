"""What smart search finds of an exhaustive list, and what it compiles for it.

`python ci/bench/smart.py [--share 0.1] [--seeds 5]`

Every candidate of the exhaustive lists of 13 shapes was built and timed once, on an
H200. Here each list is searched as a build does it, by the build's own code, with those
times in place of the device, and with all that is known of the other lists; of its own
shape nothing is. Beside it stand as many candidates at random, the fastest of
Inductor's default list, and the library. Exits with 1 where more than one shape is
further than 1 % from the exhaustive best.
"""

import json
import math
import random
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from replay import Replayed, regret_interval, replayed
from results import RESULTS, write_result

from flytune.caches.records import TuningRecord
from flytune.tuner.candidate import ATEN
from flytune.tuner.journal import Journal
from flytune.tuner.recall import Recall
from flytune.tuner.smart.cost_model import Observed, problem_of
from flytune.tuner.smart.earlier import measured
from flytune.tuner.smart.geometry import geometry_of
from flytune.tuner.smart.list_search import SHARE
from flytune.tuner.smart.waves import SmartSearch

DEVICE = "replayed-nvidia-h200"
"""Whose times are replayed."""
NEAR = 1.01
"""Times the exhaustive best, within which a choice is as good."""
ALLOWED_FAR = 1
DRAWS = 1000
DEFAULTS = Path(__file__).parents[2] / "tests" / "data" / "h200_default_lists.json"
"""Which kernels Inductor's default lists of the same shapes hold."""
Row = dict[str, Any]


@click.command()
@click.option("--share", default=SHARE, show_default=True, help="Compiled at most.")
@click.option("--seeds", default=5, show_default=True, help="Searches of each shape.")
@click.option("--tokens-out", is_flag=True, help="Leave out all of the token count.")
@click.option("--alone", is_flag=True, help="Know nothing before.")
@click.option(
    "--results", default=RESULTS, show_default=True, type=click.Path(path_type=Path)
)
def main(
    share: float, seeds: int, tokens_out: bool, alone: bool, results: Path
) -> None:
    """Search each list with the others known."""
    known = measured()
    rows = []
    for one in replayed(known):
        others = [] if alone else left(known, one, tokens_out=tokens_out)
        rows += [row_of(one, others, share, seed) for seed in range(seeds)]
        print(_line(rows[-seeds:]), flush=True)
    figures = figures_of(rows)
    print(figures)
    name = "smart" + "_tokens" * tokens_out + "_alone" * alone
    print(f"wrote {write_result(name, DEVICE, figures, rows, results)}")
    if figures["far"] > ALLOWED_FAR:
        raise SystemExit(1)


def left(
    known: Iterable[Observed], one: Replayed, *, tokens_out: bool
) -> list[Observed]:
    """Return what is known of other shapes, or of other token counts alone."""
    own = one.records[0]
    return [
        other
        for other in known
        if problem_of(other.record) != problem_of(own)
        and not (tokens_out and other.record.m == own.m)
    ]


def searched(one: Replayed, others: Sequence[Observed], share: float, seed: int) -> Row:
    """Search one list; return the fastest that it tried, and what a tie chose."""
    search = SmartSearch(one.limits, others, share=share, seed=seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal(Path(folder) / "journal.jsonl") as journal,
    ):
        recall = Recall(journal, ())
        (decision,) = search.decisions(one.time, recall, lambda _: None, [one.task], {})
    tried = [record for record in decision.records if one.was_tried(record)]
    fastest = min(tried, key=lambda r: r.median_us or math.inf)
    return {
        "fastest": fastest.choice_hash,
        "winner": decision.winner.choice_hash,
        "compiled": sum(record.backend != ATEN for record in tried),
    }


def row_of(one: Replayed, others: Sequence[Observed], share: float, seed: int) -> Row:
    """Return the row of one search."""
    found = searched(one, others, share, seed)
    best, chosen = one.best, one.by_hash[found["fastest"]]
    winner = one.by_hash[found["winner"]]
    low, high = regret_interval(chosen, best)
    draws = at_random(one, found["compiled"], seed)
    library = [us for r in one.timed if r.backend == ATEN and (us := r.median_us)]
    return {
        "shape": [best.m, best.n, best.k],
        "candidates": len(one.records),
        "seed": seed,
        **found,
        "share": round(found["compiled"] / len(one.records), 4),
        "us": chosen.median_us,
        "best_us": best.median_us,
        "regret": _ratio(chosen.median_us, best.median_us),
        "winner_regret": _ratio(winner.median_us, best.median_us),
        "interval": [round(low, 4), round(high, 4)],
        "random_regret": _ratio(statistics.median(draws), best.median_us),
        "random_interval": [
            _ratio(draws[round(share_ * (len(draws) - 1))], best.median_us)
            for share_ in (0.05, 0.95)
        ],
        "random_near": sum(us <= NEAR * best.median_us for us in draws) / len(draws),
        "default_regret": _ratio(default_us(one), best.median_us),
        "library_regret": _ratio(min(library), best.median_us),
    }


def default_us(one: Replayed) -> float:
    """Return the fastest of Inductor's default list, which the exhaustive one holds."""
    best = one.best
    listed = json.loads(DEFAULTS.read_bytes())["lists"][f"{best.m},{best.n},{best.k}"]
    wanted = set(map(tuple, listed))
    return min(
        record.median_us or math.inf
        for record in one.records
        if record.backend == ATEN or _sizes(record) in wanted
    )


def _sizes(record: TuningRecord) -> tuple[int, ...]:
    found = geometry_of(record.backend, record.config)
    assert found is not None, "all but the library's are Triton's"
    blocks = (found.block_m, found.block_n, found.block_k)
    return (*blocks, found.stages, found.warps)


def at_random(one: Replayed, number: int, seed: int) -> list[float]:
    """Return the best of so many random candidates and the library, in order."""
    dice = random.Random(seed)
    always = [r.median_us or math.inf for r in one.records if r.backend == ATEN]
    others = [r.median_us or math.inf for r in one.records if r.backend != ATEN]
    return sorted(
        min([*always, *dice.sample(others, min(number, len(others)))])
        for _ in range(DRAWS)
    )


def _ratio(us: float | None, best_us: float | None) -> float:
    assert us is not None, "timed"
    assert best_us is not None, "timed"
    return round(us / best_us, 4)


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures; a shape is near where every search's choice for it is.

    The choice is what is served: a tie within 2 % goes by the fixed order. Whether the
    fastest was tried is told beside it.
    """
    shapes: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        shapes.setdefault(tuple(row["shape"]), []).append(row)
    near = [all(r["winner_regret"] <= NEAR for r in some) for some in shapes.values()]
    found = [all(r["regret"] <= NEAR for r in some) for some in shapes.values()]
    return {
        "shapes": len(shapes),
        "searches": len(rows),
        "shapes_within_1pct": sum(near),
        "far": len(near) - sum(near),
        "shapes_tried_within_1pct": sum(found),
        "searches_within_1pct": sum(row["winner_regret"] <= NEAR for row in rows),
        "largest_regret": max(row["winner_regret"] for row in rows),
        "share_compiled": round(
            sum(row["compiled"] for row in rows) / sum(r["candidates"] for r in rows), 4
        ),
        "largest_share": max(row["share"] for row in rows),
        "random_within_1pct": round(
            statistics.fmean(row["random_near"] for row in rows), 4
        ),
        **{
            f"{name}_within_1pct": sum(
                some[0][f"{name}_regret"] <= NEAR for some in shapes.values()
            )
            for name in ("default", "library")
        },
    }


def _line(rows: Sequence[Row]) -> str:
    one = rows[0]
    regrets = ", ".join(f"{row['regret']:.3f}" for row in rows)
    return (
        f"{one['shape']}: {one['compiled']} of {one['candidates']}: {regrets}; random "
        f"{one['random_regret']:.3f}, default {one['default_regret']:.3f}"
    )


if __name__ == "__main__":
    main()
