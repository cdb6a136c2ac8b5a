"""The README's table of vLLM's key, made from its result file."""

from collections.abc import Mapping
from typing import Any


def keys_text(result: Mapping[str, Any]) -> str:
    """Return the changes, a row each, and what was said of them."""
    figures = result["figures"]
    count = figures["changes"]
    lines = [
        f"{count} changes, made one by one. {figures['missed']} gave an engine "
        f"another key; `flytune explain` foresaw {figures['foreseen']} misses, "
        f"named the factor of {figures['named']}, and computed the very key of the "
        f"engine in {figures['same_key']}, in {figures['compute_s']:.0f} s on a busy "
        "machine:",
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
