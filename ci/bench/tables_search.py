"""The README's tables of smart search and of the gate, from result files."""

from collections.abc import Mapping, Sequence
from typing import Any

from flytune.caches.ties import TIE_BAND

Row = Mapping[str, Any]


def smart_text(result: Mapping[str, Any]) -> str:
    """Return a row for each list, and what all of them come to."""
    figures = result["figures"]
    lists: dict[tuple[int, ...], list[Row]] = {}
    for row in result["rows"]:
        lists.setdefault(tuple(row["shape"]), []).append(row)
    lines = [
        f"Of {figures['shapes']} exhaustive lists, each searched "
        f"{figures['searches'] // figures['shapes']} times with the others known, "
        f"{figures['shapes_within_1pct']} choose within 1 % of their fastest candidate "
        f"every time, the worst at {figures['largest_regret']:.3f} times it; "
        f"{figures['shapes_tried_within_1pct']} have tried one within 1 %, and a tie "
        f"within {TIE_BAND:.0%} goes by the fixed order. "
        f"{figures['share_compiled']:.1%} of the "
        f"candidates are compiled, {figures['largest_share']:.1%} of a list at "
        f"most. As many at random are within 1 % in "
        f"{figures['random_within_1pct']:.0%} of cases, the fastest of "
        f"Inductor's default list in {figures['default_within_1pct']} lists, the "
        f"library in {figures['library_within_1pct']}. Times over the fastest's:",
        "",
        "| mm | candidates | compiled | chosen, worst | fastest tried, worst | as many "
        "at random, 5 to 95 % | default list's fastest | library |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_list(shape, rows) for shape, rows in lists.items()),
    ]
    return "\n".join(lines)


def _list(shape: Sequence[int], rows: Sequence[Row]) -> str:
    worst = max(rows, key=lambda row: row["winner_regret"])
    tried = max(row["regret"] for row in rows)
    random_low, random_high = worst["random_interval"]
    compiled = max(row["compiled"] for row in rows)
    return (
        f"| ({', '.join(map(str, shape))}) | {worst['candidates']} | {compiled} | "
        f"{worst['winner_regret']:.3f} | {tried:.3f} | "
        f"{random_low:.3f} to {random_high:.3f} | {worst['default_regret']:.3f} | "
        f"{worst['library_regret']:.3f} |"
    )


def tokens_text(result: Mapping[str, Any]) -> str:
    """Return what becomes of lists of which no token count alike is known."""
    figures = result["figures"]
    return (
        "Where not the shape alone is left out of what is known but all of its token "
        f"count, {figures['shapes_within_1pct']} of {figures['shapes']} lists choose "
        f"within 1 %, the worst at {figures['largest_regret']:.3f} times the fastest; "
        f"{figures['share_compiled']:.1%} are compiled."
    )


def _raced(twins: int) -> str:
    return f", {twins} times with one kernel under another name" if twins else ""


def gate_text(result: Mapping[str, Any]) -> str:
    """Return how often the gate erred."""
    figures = result["figures"]
    same, made = figures["comparisons"], figures["slowdowns_made"]
    return "\n".join(
        (
            "| compared | comparisons | said to be slower | undecided |",
            "| --- | --- | --- | --- |",
            f"| one thing tuned twice{_raced(figures['twins'])} | {same} | "
            f"{figures['false_alarms']} | {figures['comparisons_undecided']} |",
            f"| one kernel takes {figures['slowdown']:.0%} longer | {made} | "
            f"{figures['slowdowns_found']} | {figures['slowdowns_undecided']} |",
        )
    )
