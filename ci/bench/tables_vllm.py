"""The README's table of vLLM's key, made from its result file."""

from collections.abc import Mapping
from typing import Any


def keys_text(result: Mapping[str, Any]) -> str:
    """Return the changes, a row each, and what was said of them."""
    figures = result["figures"]
    count = figures["changes"]
    lines = [
        f"{count} changes, made one by one: vLLM missed the unchanged key after "
        f"{figures['missed']}, `flytune explain` foresaw {figures['foreseen']} of these "
        f"misses and named the factor of {figures['named']}, and the key that it "
        f"computed was the engine's in {figures['same_key']}. It took "
        f"{figures['compute_s']:.0f} s a change, on a machine that was busy:",
        "",
        "| changed | what is said | the same key as the engine |",
        "| --- | --- | --- |",
    ]
    for row in result["rows"]:
        follows = ", ".join(f"`{name}`" for name in row["follows"])
        besides = f"; besides {follows}" if follows else ""
        same = "yes" if row["computed"] == row["engine"] else "no"
        lines.append(f"| {row['change']} | {row['line']}{besides} | {same} |")
    return "\n".join(lines)
