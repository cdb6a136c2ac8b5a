"""How fast flytune tunes a model's shapes, beside Inductor tuning the same shapes.

`python ci/bench/throughput.py --minutes 8 [--model M] [--tokens 2,4,8,16,32,64,...]`

The same work on both sides: candidates of one list a shape, compiled and timed.
flytune's time is that of its search, Inductor's what it spends on compiling and timing
candidates by its own account, without the start of its process. What flytune does
besides, listing, during which its workers start, and baking, is measured apart.
"""

import functools
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from peer import peer
from pieces import Bench, Pieces, bench_options, numbers
from results import write_result
from stages import Shape, linears, run_stages

DEFAULT, EXHAUSTIVE = "default", "exhaustive"
Row = dict[str, Any]


@click.command()
@bench_options
@click.option("--model", default="Llama-3.1-8B", show_default=True)
@click.option(
    "--tokens", default="2,4,8,16,32,64,128,256", show_default=True, callback=numbers
)
@click.option("--per-build", default=8, show_default=True, help="Token counts.")
@click.option("--shapes", type=int, help="Of each token count, the first so many.")
@click.option("--exhaustive", default=3, show_default=True, help="Shapes of that list.")
@click.option("--exhaustive-tokens", default=64, show_default=True)
@click.option("--bake-tokens", default=64, show_default=True)
def main(
    model: str,
    tokens: tuple[int, ...],
    per_build: int,
    shapes: int | None,
    exhaustive: int,
    exhaustive_tokens: int,
    bake_tokens: int,
    **where: Any,
) -> None:
    """Measure in pieces, print with the ratios, and write the result file."""
    bench = Bench("throughput", **where)
    rows: list[Row] = []
    with bench.in_pieces(model=model) as pieces:
        default = _Side(bench, pieces, model, DEFAULT)
        for at in range(0, len(tokens), per_build):
            wanted = {
                t: linears(model, t)[:shapes] for t in tokens[at : at + per_build]
            }
            rows.append(default.flytune(wanted))
        for count in tokens:
            rows.append(default.inductor(linears(model, count)[:shapes]))
        rows.append(_baked(bench, pieces, model, bake_tokens))
        wide = _Side(bench, pieces, model, EXHAUSTIVE)
        # One by one: a single such list takes minutes.
        for shape in linears(model, exhaustive_tokens)[:exhaustive]:
            rows.append(wide.flytune({exhaustive_tokens: [shape]}))
            rows.append(wide.inductor([shape]))
    figures = {"model": model, "tokens": list(tokens), **figures_of(rows)}
    _print(figures)
    shown = [{k: v for k, v in row.items() if k != "hashes"} for row in rows]
    print(f"wrote {write_result('throughput', bench.slug, figures, shown)}")


class _Side:
    """Both sides' units with the lists of one search space."""

    def __init__(self, bench: Bench, pieces: Pieces, model: str, search: str) -> None:
        self._bench, self._pieces = bench, pieces
        self._model, self._search = model, search

    def flytune(self, wanted: Mapping[int, Sequence[Shape]]) -> Row:
        """Tune shapes by token count, in one build without a bake."""
        shapes = [shape for some in wanted.values() for shape in some]
        arguments = self._bench.build_arguments(self._model, tuple(wanted))
        arguments += ["--search", self._search]

        def tune() -> Row:
            with tempfile.TemporaryDirectory(dir=self._bench.work) as work:
                return tuned_row(run_stages(arguments, Path(work), only=shapes), shapes)

        built = self._pieces.unit(
            self._name("flytune", shapes),
            tune,
            expected_s=330 if self._search == DEFAULT else 420,
        )
        return {"side": "flytune", "search": self._search, **built}

    def inductor(self, shapes: Sequence[Shape]) -> Row:
        """Let Inductor tune shapes in one fresh process."""
        alone = functools.partial(peer, self._bench.device, shapes, search=self._search)
        expected_s = 90 if self._search == DEFAULT else 420
        tuned = self._pieces.unit(
            self._name("Inductor", shapes),
            lambda: inductor_row(alone()),
            expected_s=expected_s,
        )
        return {"side": "Inductor", "search": self._search, **tuned}

    def _name(self, side: str, shapes: Sequence[Shape]) -> str:
        ends = [shapes[0]] if len(shapes) == 1 else [shapes[0], shapes[-1]]
        words = " to ".join("x".join(map(str, shape)) for shape in ends)
        return f"{side}-{self._search} {words}, {len(shapes)} shapes"


def tuned_row(built: Mapping[str, Any], shapes: Sequence[Shape]) -> Row:
    """Return what one build did for these shapes."""
    lists = built["lists"]
    candidates = [c for one in lists for c in one["candidates"]]
    return {
        "shapes": [one["shape"] for one in lists],
        "no_choice": len(shapes) - len(lists),
        "candidates": len(candidates),
        "failed": sum(c["status"] != "ok" for c in candidates),
        "tune_s": built["seconds"]["search"],
        "ray_s": built["ray_s"],
        "list_s": built["seconds"]["enumerate"],
        "hashes": [sorted(c["hash"] for c in one["candidates"]) for one in lists],
    }


def inductor_row(tuned: Sequence[Mapping[str, Any]]) -> Row:
    """Return what one process of Inductor's did, for the shapes that had a choice."""
    rows = [row for row in tuned if row["lists"]]
    return {
        "shapes": [row["shape"] for row in rows],
        "no_choice": len(tuned) - len(rows),
        "candidates": sum(row["lists"][-1]["candidates"] for row in rows),
        "tune_s": round(sum(row["autotune_s"] for row in rows), 3),
        "wall_s": round(sum(row["wall_s"] for row in rows), 3),
        "hashes": [sorted(row["lists"][-1]["us"]) for row in rows],
    }


def _baked(bench: Bench, pieces: Pieces, model: str, tokens: int) -> Row:
    """Return the time of what a build does besides, for one token count."""
    arguments = bench.build_arguments(model, (tokens,))

    def build() -> Row:
        with tempfile.TemporaryDirectory(dir=bench.work) as work:
            built = run_stages(arguments, Path(work), bake=Path(work))
        seconds = built["seconds"]
        return {
            "tokens": tokens,
            "bake_s": seconds["bake"],
            "pack_and_verify_s": seconds["publish"],
            "verified": built["verified"],
        }

    row: Row = pieces.unit(f"bake {tokens}", build, expected_s=240)
    return {"side": "bake", **row}


def figures_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures; a speedup is of the same shapes on both sides."""
    figures: dict[str, Any] = {}
    for search in (DEFAULT, EXHAUSTIVE):
        own = Total.of(rows, "flytune", search)
        other = Total.of(rows, "Inductor", search)
        figures |= {
            f"lists_{search}": len(own.shapes),
            f"candidates_{search}": own.candidates,
            f"inductor_candidates_{search}": other.candidates,
            f"flytune_{search}_s": round(own.seconds, 1),
            f"inductor_{search}_s": round(other.seconds, 1),
            f"same_lists_{search}": sum(
                own.hashes[shape] >= other.hashes[shape]
                for shape in own.hashes.keys() & other.hashes.keys()
            ),
            f"speedup_{search}": None,
        }
        if own.shapes and own.shapes == other.shapes:
            figures[f"speedup_{search}"] = round(other.seconds / own.seconds, 3)
    seconds = figures["flytune_default_s"]
    rate = 60 * figures["candidates_default"] / seconds if seconds else 0.0
    figures["candidates_per_min"] = round(rate, 1)
    flytune = [row for row in rows if row["side"] == "flytune"]
    figures["ray_s"] = round(sum(row["ray_s"] for row in flytune), 1)
    figures["listing_s"] = round(sum(row["list_s"] for row in flytune), 1)
    baked = next(row for row in rows if row["side"] == "bake")
    for name in ("bake_s", "pack_and_verify_s"):
        figures[name] = round(baked[name], 1)
    figures["bake_tokens"] = baked["tokens"]
    return figures


@dataclass(frozen=True, slots=True)
class Total:
    """What one side did with one search space."""

    seconds: float
    candidates: int
    hashes: Mapping[Shape, frozenset[str]]

    @property
    def shapes(self) -> frozenset[Shape]:
        return frozenset(self.hashes)

    @classmethod
    def of(cls, rows: Iterable[Row], side: str, search: str) -> "Total":
        some = [r for r in rows if r["side"] == side and r.get("search") == search]
        return cls(
            sum(row["tune_s"] for row in some),
            sum(row["candidates"] for row in some),
            {
                (m, n, k): frozenset(hashes)
                for row in some
                for (m, n, k), hashes in zip(row["shapes"], row["hashes"], strict=True)
            },
        )


def _print(figures: Mapping[str, Any]) -> None:
    for search in (DEFAULT, EXHAUSTIVE):
        print(
            f"{search}: {figures[f'lists_{search}']} lists, flytune "
            f"{figures[f'candidates_{search}']} candidates in "
            f"{figures[f'flytune_{search}_s']} s, Inductor "
            f"{figures[f'inductor_candidates_{search}']} in "
            f"{figures[f'inductor_{search}_s']} s: "
            f"{figures[f'speedup_{search}']} x as fast; "
            f"{figures[f'same_lists_{search}']} lists hold all of Inductor's candidates"
        )
    print(f"{figures['candidates_per_min']} candidates a minute, built and timed")
    print(
        f"apart: listing {figures['listing_s']} s, of it Ray took {figures['ray_s']} "
        f"s to start; at {figures['bake_tokens']} tokens "
        f"baking {figures['bake_s']} s, packing and verifying "
        f"{figures['pack_and_verify_s']} s"
    )


if __name__ == "__main__":
    main()
