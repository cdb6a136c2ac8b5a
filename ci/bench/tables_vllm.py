"""The README's tables of vLLM's key, its starts and of ledgers, from result files."""

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


_MODELS = {"tiny": "a tiny Llama", "wide": "two layers of Llama-3.1-8B"}
_STARTS = {
    "cold": "nothing cached",
    "warm": "vLLM's own cache",
    "bundle": "the bundle, in a fresh HOME",
}


def start_text(result: Mapping[str, Any]) -> str:
    """Return the engine's starts, a row each."""
    lines = [
        "An engine's start until its first tokens, in fresh processes under a ledger; "
        "the last two kinds in turn, medians of "
        f"{max(result['figures'][n] for n in result['figures'] if 'starts' in n)}:",
        "",
        "| model | with | start | graphs compiled | kernels compiled | tokens/s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    figures = result["figures"]
    for model in dict.fromkeys(row["model"] for row in result["rows"]):
        for start, words in _STARTS.items():
            name = f"{model}_{start}"
            lines.append(
                f"| {_MODELS[model]} | {words} | {figures[f'{name}_s']:.1f} s | "
                f"{figures[f'{name}_lowered']} | {figures[f'{name}_compiled']} | "
                f"{figures[f'{name}_tokens_per_s']:.0f} |"
            )
    return "\n".join(lines)


def ledger_text(result: Mapping[str, Any]) -> str:
    """Return what a ledger costs, in a sentence."""
    figures = result["figures"]
    added = figures["call_added_us"]
    call = (
        f"{figures['call_share_pct']:.1f} % of a call of one ({added:.2f} of "
        f"{figures['call_us']:.1f} us)"
        if added > 0
        else f"nothing that can be measured of a call of {figures['call_us']:.1f} us"
    )
    return (
        f"A ledger took {figures['share_pct']:.1f} % of the time of a process that "
        f"compiles {figures['graphs']} graphs as small as they get "
        f"({figures['ledger_s']:.2f} of {figures['process_s']:.1f} s), and {call}."
    )
