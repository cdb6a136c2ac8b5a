"""The README's table of builds from an older bundle, from a result file."""

from collections.abc import Mapping
from typing import Any

_BESIDE = {"unchanged": "fresh", "compiler": "small", "triton": "gfx950"}
_WORDS = {
    "fresh": "from nothing",
    "unchanged": "from that bundle, nothing changed",
    "small": "from nothing",
    "compiler": "from that bundle, one flag more for the C++ compiler",
    "gfx950": "one list for a gfx950, compiled alone by Triton {triton}",
    "triton": "from that bundle, by Triton {triton}",
}


def upgrade_text(result: Mapping[str, Any]) -> str:
    """Return the builds, a row each, beside the one that made their older bundle."""
    rows = {row["build"]: row for row in result["rows"]}
    lines = [
        "On a machine that did other work beside it:",
        "",
        "| build | wall time | of the one above | kernels compiled | lists timed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        beside = rows.get(_BESIDE.get(name, ""))
        what = "" if beside else f"{row['model']} at {row['tokens']} tokens, "
        share = f"{row['wall_s'] / beside['wall_s']:.1%}" if beside else ""
        lines.append(
            f"| {what}{_WORDS[name].format(**row)} | {row['wall_s']:.0f} s | {share} | "
            f"{row['compiled']} | {row['timed']} |"
        )
    return "\n".join(lines)
