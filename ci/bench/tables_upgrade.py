"""The README's table of builds from an older bundle, from a result file."""

from collections.abc import Mapping
from typing import Any

_BUILDS = {
    "fresh": "from nothing",
    "unchanged": "from that bundle, nothing changed",
    "compiler": "from that bundle, one flag more for the C++ compiler",
    "gfx950-fresh": "for a gfx950, compiled alone, from nothing",
    "gfx950-upgraded": "the same, from a bundle of an older Triton",
}
_BESIDE = {"gfx950-fresh": "gfx950-fresh", "gfx950-upgraded": "gfx950-fresh"}


def upgrade_text(result: Mapping[str, Any]) -> str:
    """Return the builds, a row each, beside the one from nothing."""
    figures = result["figures"]
    rows = {row["build"]: row for row in result["rows"]}
    lines = [
        f"{figures['model']} at {figures['tokens']} tokens, under the policy "
        f"{figures['policy']}:",
        "",
        "| build | wall time | of one from nothing | kernels compiled | lists timed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, words in _BUILDS.items():
        if name not in rows:
            continue
        row, beside = rows[name], rows[_BESIDE.get(name, "fresh")]
        share = "" if row is beside else f"{row['wall_s'] / beside['wall_s']:.0%}"
        lines.append(
            f"| {words} | {row['wall_s']:.0f} s | {share} | {row['compiled']} | "
            f"{row['timed']} |"
        )
    return "\n".join(lines)
