"""The README's table of simulated clusters, from its result file."""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def scale_text(result: Mapping[str, Any]) -> str:
    """Return a row for each simulated cluster."""
    figures = result["figures"]
    lines = [
        f"{figures['candidates']:,} candidates in {figures['lists']:,} lists; one "
        f"takes {figures['mean_compile_s']:.2f} s to compile and a list "
        f"{figures['mean_list_s']:.2f} s to check and time, drawn from what they took "
        f"on an H200. A batch costs {figures['ray_submit_ms']:.2f} ms to hand out and "
        f"{figures['ray_told_ms']:.2f} ms to take back in calls of Ray, measured. "
        f"The driver takes {figures['driver_gib']:.2f} GiB at most.",
        "",
        "| GPUs | cores | at least | took | efficiency | GPUs busy | the scheduler's "
        "own, a candidate | and Ray's calls | and decisions, journal |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(_cluster, result["rows"]),
    ]
    return "\n".join(lines)


def _cluster(row: Row) -> str:
    return (
        f"| {row['devices']} | {row['cores']} | {row['ideal_s']:,.0f} s | "
        f"{row['took_s']:,.0f} s | {row['efficiency_pct']:.0f} % | "
        f"{row['devices_busy_pct']:.0f} % | {row['driver_ms']:.4f} ms | "
        f"{row['driver_and_ray_ms']:.3f} ms | {row['all_ms']:.3f} ms |"
    )
