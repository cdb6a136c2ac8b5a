"""The README's tables of faults and of the fuzzer, made from their result files."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Row = Mapping[str, Any]
_ENDS = ("refused", "mended", "served without", "served whole")
# Where a damage is, as the table has it, by the first words of a row's `where`.
_WHERE = {
    "an archive": "bundle",
    "a directory": "bundle",
    "the place": "installed place",
    "the disk": "disk",
}
# Of a bundle, as the fuzzer names them.
_LAYERS = {
    "archive": "any bytes of the archive",
    "members": "any bytes within, compressed anew",
    "headers": "its members: names, kinds, sizes, order",
    "manifest": "the manifest, signed by nobody",
    "envelope": "the signature",
    "paths": "paths, manifest and members agreeing, signed by nobody",
}


def faults_text(result: Mapping[str, Any]) -> str:
    """Return the table of kinds of faults, a line each."""
    figures, rows = result["figures"], result["rows"]
    (raced,) = (row for row in rows if row["fault"] == "loaders")
    loads = [row for row in rows if row["fault"] == "damaged load"]
    return "\n".join(
        [
            f"Lost: {figures['lost']}. Wrong: {figures['wrong']}. Seed "
            f"{figures['seed']}.",
            "",
            "| fault | how many | what became of them |",
            "| --- | --- | --- |",
            f"| processes install one bundle at once | {raced['loaders']} | "
            f"{raced['hits']} hits, {raced['misses']} misses, {raced['failed']} "
            f"errors, the last after {raced['install_s']:.2f} s |",
            f"| and then import torch and serve its program, {figures['at_a_time']} at "
            f"a time | {raced['served']} | {raced['work']} compiled or tuned anything, "
            f"{raced['wrong']} of {raced['calls']} outputs unlike eager's |",
            *(_kill(row) for row in rows if row["fault"] == "kill"),
            *_damages([row for row in rows if row["fault"] == "damage"]),
            "| the program is served from damaged files | "
            f"{len(loads)} | {sum(row.get('right', False) for row in loads)} right, "
            f"{sum(row.get('state') == 'damaged' for row in loads)} of them without "
            "what was damaged |",
        ]
    )


def _kill(row: Row) -> str:
    ends = _counted({name: row[name] for name in ("old", "new", "partly mended")})
    return f"| SIGKILL: {row['kind']} | {row['inputs']} | {ends} |"


def _damages(rows: list[Row]) -> Iterator[str]:
    """Yield a line for each kind of damage and where it is."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        first = row["where"].partition(",")[0]
        where = _WHERE.get(first, "installed file")
        found = counts.setdefault((where, row["kind"]), Counter())
        found.update({name: row[name] for name in _ENDS})
    for (where, kind), found in counts.items():
        yield f"| {where}: {kind} | {found.total()} | {_counted(found)} |"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def fuzz_text(result: Mapping[str, Any]) -> str:
    """Return the table of what was mutated, a line a layer."""
    figures = result["figures"]
    lines = [
        f"{figures['fuzz_inputs']:,} mutations of the stored bundles, made from the "
        f"numbers {figures['first']:,} on, {figures['inputs_per_core_s']} a second and "
        "core. Whatever was read holds files of the original and no other content; no "
        "exception was another than flytune's own, and nothing was written elsewhere:",
        "",
        "| mutated | inputs | read | refused | in ways |",
        "| --- | --- | --- | --- | --- |",
    ]
    for layer, words in _LAYERS.items():
        counts = {
            row["outcome"]: row["inputs"]
            for row in result["rows"]
            if row["layer"] == layer
        }
        read = counts.pop("read", 0)
        refused = sum(counts.values())
        lines.append(
            f"| {words} | {read + refused:,} | {read:,} | {refused:,} | {len(counts)} |"
        )
    return "\n".join(lines)
