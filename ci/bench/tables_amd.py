"""The README's tables of what is compiled for an AMD GPU without one."""

from collections.abc import Iterable, Mapping
from typing import Any

Result = Mapping[str, Any]
_BACKENDS = {"flydsl": "FlyDSL", "triton": "Triton"}
_DEVICELESS = "compiled on a host without such a GPU"


def compile_text(result: Result) -> str:
    """Return the table of `compile.py`: the workers beside a loop."""
    figures = result["figures"]
    cores = [name for name in figures["seconds"] if name != "loop"]
    heads = [f"a build's workers on {n} core{'s' * (n != '1')}" for n in cores]
    lines = [
        f"Candidates for an {figures['target']} {_DEVICELESS}:",
        "",
        "| backend | candidates | kernels | failed | a loop in one process | "
        f"{' | '.join(heads)} |",
        f"| --- | --- | --- | --- | --- |{' --- |' * len(heads)}",
    ]
    for backend, name in _BACKENDS.items():
        if (row := figures.get(backend)) is None:
            continue
        loop = row["seconds"]["loop"]
        cells = [
            f"{loop:.0f} s",
            *(
                f"{spent:.0f} s ({loop / spent:.2f}x as fast)"
                for spent in (row["seconds"][name] for name in cores)
            ),
        ]
        lines.append(
            f"| {name} | {row['candidates']} | {row['compilations']} | "
            f"{row['failures']} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def coverage_text(result: Result) -> str:
    """Return the table of `coverage.py`: what became of each kind of candidate."""
    figures = result["figures"]
    what = [
        _and(figures["models"]),
        f"{_and(figures['tp'])} ranks",
        f"{_and(figures['tokens'])} tokens",
        _and(figures["quants"]),
    ]
    lines = [
        f"Every candidate that Inductor lists by default for an {figures['target']}, "
        f"{_DEVICELESS}: {', '.join(what)}; a list that several builds ask for counts "
        "once.",
        "",
        "| backend, op and type | candidates | compiled | refused by a rule | failed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, counts in figures["by_kind"].items():
        if not kind.startswith("aten "):  # there is nothing to compile
            lines.append(f"| {kind} | {_cells(counts, figures['classified'])} |")
    made = [
        f"{figures['kernels'][backend]} kernels of {name}'s in "
        f"{figures['compile_core_s'][backend] / 60:.0f} core minutes"
        for backend, name in _BACKENDS.items()
        if backend in figures["kernels"]
    ]
    lines += [
        "",
        f"They are {_and(made)}. In the bundles of the {figures['builds']} builds "
        f"fresh processes found {figures['found_without_compiling']} kernels of "
        "FlyDSL's, compiling none.",
        "",
        *(_none(why, shapes) for why, shapes in figures["unlisted"].items()),
    ]
    if figures["exhaustive"] is not None:
        lines += ["", _exhaustive(figures["exhaustive"], figures["classified"])]
    return "\n".join(lines)


def _cells(counts: Mapping[str, int], classified: Iterable[str]) -> str:
    refused = sum(counts.get(status, 0) for status in classified)
    compiled, total = counts.get("ok", 0), sum(counts.values())
    cells = total, compiled, refused, total - compiled - refused
    return " | ".join(map(str, cells))


def _none(reason: str, shapes: Iterable[str]) -> str:
    return f"No list: {len(list(shapes))} of the planned shapes, by `{reason}`."


def _exhaustive(row: Mapping[str, Any], classified: Iterable[str]) -> str:
    m, n, k = row["shape"]
    counts = row["statuses"]
    refused = sum(counts.get(status, 0) for status in classified)
    return (
        f"The exhaustive FlyDSL list of ({m}, {n}, {k}): {row['candidates']} "
        f"candidates with the library's, {counts.get('ok', 0)} ok, {refused} "
        f"refused by a rule, {row['failures']} failed, in "
        f"{row['compile_core_s'] / 60:.0f} core minutes."
    )


def _and(words: Iterable[Any]) -> str:
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}" if first else last
