"""The README's tables of figures, made from the result files.

`python ci/bench/tables.py` writes them between the README's markers; a test holds that
they are as this makes them.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from results import RESULTS

README = Path(__file__).parents[2] / "README.md"
Result = Mapping[str, Any]


def main() -> None:
    """Write every table into the README."""
    README.write_text(filled(README.read_text()))


def filled(text: str) -> str:
    """Return the README's text with each marked block made anew.

    Raises:
        KeyError: a marker names no table.
    """
    pattern = re.compile(r"<!-- bench: (\w+) -->\n.*?<!-- end -->", re.DOTALL)

    def block(match: re.Match[str]) -> str:
        name = match[1]
        parts = [
            f"{TABLES[name](result)}\n{_source(result)}"
            for path in sorted(RESULTS.glob(f"{name}.*.json"))
            for result in [json.loads(path.read_text())]
        ]
        body = "\n\n".join(parts)
        return f"<!-- bench: {name} -->\n{body}\n<!-- end -->"

    return pattern.sub(block, text)


def _first_call(result: Result) -> str:
    lines = [
        f"First calls of {result['figures']['model']}'s decoder layer and head at "
        f"{result['figures']['tokens']} tokens, in fresh processes of one run:",
        "",
        "| policy | nothing cached | torch's mega-cache | the bundle | bundle's work |",
        "| --- | --- | --- | --- | --- |",
    ]
    for policy in ("unfrozen", "frozen"):
        row = result["figures"][policy]
        mega = f"{row['megacache_s']:.1f} s ({row['megacache_over_bundle']:.1f}x)"
        if not row["megacache_bytes"]:
            mega += ", torch saves none"
        lines.append(
            f"| {policy} | {row['cold_s']:.1f} s ({row['cold_over_bundle']:.1f}x) | "
            f"{mega} | {row['bundle_s']:.1f} s | {row['tuned']} tuned, "
            f"{row['compiled']} compiled, {row['lowered']} lowered |"
        )
    return "\n".join(lines)


def _build_cost(result: Result) -> str:
    figures = result["figures"]
    lines = [
        f"`flytune build --model {figures['model']} --tokens {figures['tokens']}` "
        "from nothing:",
        "",
        "| policy | wall | memory | bundle | lists tuned |",
        "| --- | --- | --- | --- | --- |",
    ]
    for policy in ("unfrozen", "frozen"):
        row = figures[policy]
        minutes, seconds = divmod(round(row["wall_s"]), 60)
        lines.append(
            f"| {policy} | {minutes} min {seconds} s | {row['machine_gib']:.1f} GiB | "
            f"{row['bundle_bytes'] / 1e3:.0f} kB | {row['tuned']} of {row['lists']} |"
        )
    return "\n".join(lines)


def _agreement(result: Result) -> str:
    row = result["figures"]
    return (
        f"Two independent builds of {row['model']} ({row['policy']}, tokens "
        f"{row['tokens']}): {row['same_winner']} of {row['lists']} lists have the same "
        f"winner, {row['agreement']} agree within ties."
    )


def _install_time(result: Result) -> str:
    row = result["figures"]
    return (
        f"`flytune.caches.install` of a bundle that is unpacked already "
        f"({row['bundle_bytes'] / 1e6:.1f} MB, {row['files']} files), its import "
        f"included: {1e3 * row['install_s']:.0f} ms; a plain copy of the directory: "
        f"{1e3 * row['copy_s']:.0f} ms."
    )


def _source(result: Result) -> str:
    versions = result["versions"]
    return (
        f"\n`{result['command']}`, {result['date']}, {result['device']}, "
        f"Python {versions['python']}, torch {versions['torch']}."
    )


TABLES: Mapping[str, Callable[[Result], str]] = {
    "first_call": _first_call,
    "build_cost": _build_cost,
    "agreement": _agreement,
    "install_time": _install_time,
}

if __name__ == "__main__":
    main()
