"""Whether two independent builds of one thing choose the same kernels.

`python ci/bench/agreement.py [--model M] [--tokens 1,16] [--policy frozen]`

Each build has a work directory of its own, so that nothing is taken from the other.
Where the winners differ, each must be tied with the fastest in the other's samples.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import click
from builds import build_bundle
from results import write_result

from flytune.caches import Bundle
from flytune.caches.records import TuningRecord, read_records
from flytune.caches.target import Target
from flytune.caches.ties import tied_with_fastest
from flytune.tuner.publish import RECORDS_NAME

ListKey = tuple[str | None, str | None, str]


@click.command()
@click.option("--model", default="Qwen3-4B", show_default=True)
@click.option("--tokens", default="1,16", show_default=True)
@click.option("--policy", default="frozen", show_default=True)
def main(model: str, tokens: str, policy: str) -> None:
    """Build twice, compare, print and write the result file."""
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        first, second = (
            _lists(
                build_bundle(
                    model,
                    tokens,
                    policy,
                    Path(directory, str(number)),
                    work=Path(directory, f"work-{number}"),
                )
            )
            for number in range(2)
        )
    if first.keys() != second.keys():
        raise click.ClickException("the two builds did not see the same lists")
    rows = [_compare(first[key], second[key]) for key in first]
    same = sum(row["same_winner"] for row in rows)
    tied = sum(row["within_tie"] for row in rows)
    figures = {
        "model": model,
        "tokens": tokens,
        "policy": policy,
        "lists": len(rows),
        "same_winner": same,
        "agreement": tied,
    }
    print(f"{same} of {len(rows)} lists have the same winner, {tied} agree within ties")
    slug = Target.here(threads=len(os.sched_getaffinity(0))).slug
    print(f"wrote {write_result('agreement', slug, figures, rows)}")


def _lists(bundle: Bundle) -> dict[ListKey, list[TuningRecord]]:
    """Return the records of every list that had a choice."""
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        placed = Path(directory) / "bundle"
        bundle.place(placed, only=[RECORDS_NAME])
        records = read_records(placed / RECORDS_NAME)
    lists: dict[ListKey, list[TuningRecord]] = {}
    for record in records:
        key = (record.inductor_op, record.inputs_key, record.module)
        lists.setdefault(key, []).append(record)
    return {key: some for key, some in lists.items() if len(some) > 1}


def _compare(first: list[TuningRecord], second: list[TuningRecord]) -> dict[str, Any]:
    winners = [next(r for r in some if r.winner) for some in (first, second)]
    same = winners[0].choice_hash == winners[1].choice_hash
    crossed = ((first, winners[1]), (second, winners[0]))
    return {
        "list": f"{first[0].op} ({first[0].m}, {first[0].n}, {first[0].k})",
        "inductor_op": first[0].inductor_op,
        "winners": [w.backend for w in winners],
        "winner_us": [w.median_us for w in winners],
        "same_winner": same,
        "within_tie": same or all(_tied(some, other) for some, other in crossed),
    }


def _tied(records: list[TuningRecord], winner: TuningRecord) -> bool:
    raced = [r for r in records if r.samples_us and r.pruned_by is None]
    samples = {r.choice_hash: r.samples_us for r in raced}
    return winner.choice_hash in tied_with_fastest(samples)


if __name__ == "__main__":
    main()
