"""The README's table of `first_token.py`."""

from collections.abc import Mapping
from typing import Any

_HOWS = {"whole": "all of it as one graph", "layers": "layer by layer"}
_WORK = ("tuned", "compiled", "lowered")


def first_token_text(result: Mapping[str, Any]) -> str:
    """Return the table of one device's result."""
    figures = result["figures"]
    depth = "all" if figures["depth"] is None else figures["depth"]
    lines = [
        f"The first token of {figures['model']}, {depth} layers, after it is loaded, "
        f"from a prompt of {figures['prompt']} tokens, each way in "
        "fresh processes of one run:",
        "",
        "| compiled | nothing cached | torch's mega-cache | the bundle | bundle's work "
        "| the bundle, in a host's first process | run eagerly |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for how, words in _HOWS.items():
        if how not in figures:
            continue
        row = figures[how]
        work = ", ".join(f"{row['bundle_work'][name]} {name}" for name in _WORK)
        mega = _beside(row, "megacache")
        if not row["megacache_bytes"]:
            mega += ", torch saves none"
        lines.append(
            f"| {words} | {_beside(row, 'cold')} | {mega} | {row['bundle_s']:.2f} s | "
            f"{work} | {row['bundle_first_s']:.2f} s | {row['eager_s']:.2f} s |"
        )
    return "\n".join(lines)


def _beside(row: Mapping[str, Any], vehicle: str) -> str:
    ratio = row[f"{vehicle}_over_bundle"]
    return f"{row[f'{vehicle}_s']:.1f} s ({ratio:.1f}x)"
