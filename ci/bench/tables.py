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
from tables_amd import compile_text, coverage_text
from tables_cluster import scale_text
from tables_faults import faults_text, fuzz_text
from tables_search import gate_text, smart_text, tokens_text
from tables_token import first_token_text
from tables_upgrade import upgrade_text
from tables_vllm import keys_text, ledger_text, start_text

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
        body = "".join(f"{part}\n" for part in ["\n\n".join(parts)] if part)
        return f"<!-- bench: {name} -->\n{body}<!-- end -->"

    return pattern.sub(block, text)


def _first_call(result: Result) -> str:
    figures = result["figures"]
    lines = [
        f"First calls of {_program(figures)} at {figures['tokens']} tokens, in fresh "
        "processes of one run:",
        "",
        "| policy | nothing cached | torch's mega-cache | the bundle | bundle's work | "
        "with precompiled entries |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    # An accelerator has one policy, whose figures are the benchmark's own.
    one = {figures["policy"]: figures} if "policy" in figures else {}
    policies = one or {name: figures[name] for name in ("unfrozen", "frozen")}
    for policy, row in policies.items():
        mega = f"{row['megacache_s']:.1f} s ({row['megacache_over_bundle']:.1f}x)"
        if not row["megacache_bytes"]:
            mega += ", torch saves none"
        precompiled = "torch stores none"
        if "precompiled_s" in row:
            precompiled = f"{row['precompiled_s']:.2f} s"
        lines.append(
            f"| {policy} | {row['cold_s']:.1f} s ({row['cold_over_bundle']:.1f}x) | "
            f"{mega} | {row['bundle_s']:.2f} s | {row['tuned']} tuned, "
            f"{row['compiled']} compiled, {row['lowered']} lowered | {precompiled} |"
        )
    for policy, row in one.items():
        lines += ["", _first_process(row), "", *_parts(policy, row)]
        lines += ["", *_steady(policy, row)]
    return "\n".join(lines)


def _program(figures: Mapping[str, Any]) -> str:
    if figures["layers"]:
        return f"{figures['layers']} layers of {figures['model']} as one graph"
    return f"{figures['model']}'s decoder layer and head"


_PARTS = {
    "ready": "loading the cache",
    "dynamo": "Dynamo",
    "aot": "AOTAutograd",
    "inductor": "Inductor",
    "graphs": "graphs loaded",
    "kernels": "Triton kernels loaded",
    "rest": "the rest",
}
_VEHICLES = {
    "plain": "plain `torch.compile`",
    "cold": "nothing cached",
    "megacache": "torch's mega-cache",
    "bundle": "the bundle",
    "precompiled": "with precompiled entries",
    "eager": "run eagerly",
}


def _parts(policy: str, row: Mapping[str, Any]) -> list[str]:
    """Return the table of where the seconds go."""
    lines = [
        f"| seconds of it, medians | {' | '.join(_PARTS.values())} |",
        f"| --- |{' --- |' * len(_PARTS)}",
    ]
    for vehicle, name in _VEHICLES.items():
        seconds = row["parts_s"].get(vehicle)
        if seconds is None:
            continue
        cells = " | ".join(f"{seconds[part]:.2f}" for part in _PARTS)
        lines.append(f"| {name} | {cells} |")
    return lines


def _first_process(row: Mapping[str, Any]) -> str:
    """Return a line of what the first process on a host waits for."""
    words = "A host's first process, which installs the bundle: "
    words += f"{row['bundle_first_s']:.2f} s"
    if "precompiled_first_s" in row:
        words += f"; with precompiled entries {row['precompiled_first_s']:.2f} s"
    return f"{words}."


def _steady(policy: str, row: Mapping[str, Any]) -> list[str]:
    """Return lines of how long a call takes from then on."""
    lines = []
    plain = f'a plain `torch.compile(mode="{policy}")`'
    for kind, words in (
        ("steady_us", "A call from then on"),
        ("device_us", "Of it on the device, replayed as a CUDA graph"),
    ):
        parts = [
            f"{name.replace(' ', ' at ')} tokens {us['bundle']:.0f} us from the "
            f"bundle, {us['plain']:.0f} us from {plain} "
            f"({us['plain'] / us['bundle']:.2f}x)"
            for name, us in row[kind].items()
        ]
        if parts:
            lines.append(f"{words}: {'; '.join(parts)}.")
    return lines


def _regret(result: Result) -> str:
    figures = result["figures"]
    models, tokens = (
        " and ".join(map(str, figures[name])) for name in ("models", "tokens")
    )
    lines = [
        f"{figures['shapes']} shapes of {models} at {tokens} tokens; a kernel's time "
        "over that of the best known, which a race many times longer than a build's "
        "found:",
        "",
        "| whose kernel | within 1 % | median | worst |",
        "| --- | --- | --- | --- |",
    ]
    for who, prefix in (
        ("flytune's winner", ""),
        ("what the graph holds", "baked_"),
        ("Inductor's own pick", "peer_"),
    ):
        middle, worst = (
            "-" if value is None else f"{value:.3f}"
            for value in (
                figures[f"{prefix}median_over_best"],
                figures[f"{prefix}worst_over_best"],
            )
        )
        share = figures[f"{prefix}share_within_1pct"]
        lines.append(f"| {who} | {share:.0%} | {middle} | {worst} |")
    lines += [
        "",
        "Two independent builds chose the same kernel, or one within the tie band, "
        f"for {figures['agreement']:.0%} of the shapes.",
    ]
    if figures["peer_over_winner"] is not None:
        lines[-1] += (
            f" Inductor's pick takes {figures['peer_over_winner']:.3f} times as long "
            "as flytune's winner in the geometric mean."
        )
    return "\n".join(lines)


def _throughput(result: Result) -> str:
    figures = result["figures"]
    lines = [
        f"The shapes of {figures['model']}, candidates compiled and timed by flytune "
        "and by Inductor itself in one run:",
        "",
        "| list | lists | candidates | flytune | Inductor | flytune is |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for search in ("default", "exhaustive"):
        if (speedup := figures[f"speedup_{search}"]) is None:
            continue
        lines.append(
            f"| {search} | {figures[f'lists_{search}']} | "
            f"{figures[f'candidates_{search}']} | {figures[f'flytune_{search}_s']} s | "
            f"{figures[f'inductor_{search}_s']} s | {speedup:.2f}x as fast |"
        )
    lines += [
        "",
        f"{figures['candidates_per_min']:.0f} candidates a minute. Listing them is on "
        f"neither side: flytune's took {figures['listing_s']:.0f} s in all, while its "
        f"workers started. Besides that, a build at {figures['bake_tokens']} tokens "
        f"bakes for {figures['bake_s']:.0f} s, and packs and verifies for "
        f"{figures['pack_and_verify_s']:.0f} s.",
    ]
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
        f"{row['layers']} layers of {row['model']} at {row['tokens']} tokens, as one "
        f"graph: the bundle is {row['bundle_bytes'] / 1e3:.0f} kB, "
        f"{100 * row['bundle_over_directory']:.0f} % of the cache directory that would "
        f"be copied ({row['directory_bytes'] / 1e6:.1f} MB). To install it, "
        f"`flytune.caches` imported and {row['files']} files checked, takes "
        f"{1e3 * row['install_s']:.0f} ms where nothing is, "
        f"{1e3 * row['again_s']:.0f} ms where it is; to copy the directory "
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
    "first_token": first_token_text,
    "regret": _regret,
    "throughput": _throughput,
    "build_cost": _build_cost,
    "agreement": _agreement,
    "install_time": _install_time,
    "fuzz": fuzz_text,
    "faults": faults_text,
    "compile": compile_text,
    "coverage": coverage_text,
    "vllm_keys": keys_text,
    "vllm_start": start_text,
    "ledger": ledger_text,
    "upgrade": upgrade_text,
    "smart": smart_text,
    "smart_tokens": tokens_text,
    "gate": gate_text,
    "scale": scale_text,
}

if __name__ == "__main__":
    main()
