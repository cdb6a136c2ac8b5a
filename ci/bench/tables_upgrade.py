"""The README's table of builds from an older bundle, from a result file."""

from collections.abc import Mapping
from typing import Any

_BUILDS = {
    "fresh": "from nothing",
    "unchanged": "from that bundle, nothing changed",
    "compiler": "from that bundle, one flag more for the C++ compiler",
    "gfx950-older": "for a gfx950, compiled alone, from nothing, by an older Triton",
    "gfx950-upgraded": "the same from that bundle, by the next Triton",
}
_BESIDE = {"gfx950-older": "gfx950-older", "gfx950-upgraded": "gfx950-older"}


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
