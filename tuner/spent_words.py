"""What is said of a build's estimate, budget and spending."""

from collections.abc import Iterator, Mapping
from typing import Any

from flytune.caches.manifest import Manifest
from flytune.caches.report.budgets import unreached_text
from flytune.caches.report.bundles import stated
from flytune.caches.words import counted, seconds_text
from flytune.tuner.budget import Allowance
from flytune.tuner.estimate import Estimate


def estimate_line(estimate: Estimate) -> str:
    """Say what a build will take."""
    parts = (f"{n} {seconds_text(s)}" for n, s in estimate.parts.items() if s >= 0.5)
    return (
        f"estimate: about {_cost(estimate)}: {', '.join(parts)}; by {estimate.source}"
    )


def now_line(estimate: Estimate) -> str:
    """Say what is expected once the lists are known."""
    tune = seconds_text(round(estimate.parts.get("tune", 0.0), 1))
    return f"estimate: now about {_cost(estimate)} in all, of it {tune} to tune"


def _cost(estimate: Estimate) -> str:
    words = seconds_text(estimate.seconds)
    if estimate.devices:
        gpus = counted(estimate.devices, "GPU")
        words += f", {_hours(estimate.gpu_hours)} of {gpus}"
    return words + _price(estimate.cost)


def _hours(gpu_hours: float) -> str:
    return f"{gpu_hours:.2f} GPU hours"


def _price(cost: float | None) -> str:
    return "" if cost is None else f", ${cost:.2f}"


def short_line(estimate: Estimate, allowance: Allowance) -> str:
    """Say that a budget will not do for all lists; nothing where it will.

    Args:
        allowance: Whose reserve is for what follows the tuning.
    """
    budget, tune_s = allowance.budget, estimate.parts.get("tune", 0.0)
    passed_s = allowance.meter.seconds
    before_s = sum(estimate.parts.get(name, 0.0) for name in ("plan", "enumerate"))
    rest_s = max(0.0, before_s - passed_s) + allowance.reserve_s
    left_s = allowance.left_s() - rest_s
    if budget is None or left_s >= tune_s:
        return ""
    if left_s <= 0:
        return (
            f"budget: {budget.text} is less than it takes to tune nothing, about "
            f"{seconds_text(passed_s + rest_s)}: no list is timed that has a library's "
            "kernel"
        )
    return (
        f"budget: {budget.text} leaves about {seconds_text(left_s)} to tune, and all "
        f"lists take {seconds_text(tune_s)}: the hottest come first"
    )


def unreached_line(row: Mapping[str, Any]) -> str:
    """Say what a budget left no time for; nothing where it was enough.

    Args:
        row: The provenance's `budget`.
    """
    text = unreached_text(row)
    return text and f"budget: {text}; the same command goes on from here"


def spent_lines(manifest: Manifest) -> Iterator[str]:
    """Yield what a build took beside what it was expected to, for its summary."""
    row = stated(manifest.provenance.get("estimate"), dict)
    took = row.get("took_s")
    if isinstance(took, int | float) and took > 0:
        yield f"took    {took_text(row)}"
    if text := budget_text(manifest):
        yield f"budget  {text}"


def budget_text(manifest: Manifest) -> str:
    """Say what a build had no time for; nothing where it had."""
    row = stated(manifest.provenance.get("budget"), dict)
    return unreached_line(row).removeprefix("budget: ") if row else ""


def took_text(row: Mapping[str, Any]) -> str:
    """Say what a build took, and what it was expected to.

    Args:
        row: The provenance's `estimate`.
    """
    took_s, seconds = row["took_s"], row["seconds"]
    words = seconds_text(took_s)
    if row["took_gpu_hours"]:
        words += f", {_hours(row['took_gpu_hours'])}{_price(row['took_cost'])}"
    expected = f"{seconds_text(seconds)}{_price(row['cost'])}"
    return f"{words}; estimated {expected}: {row['ratio']:.2f} of what it took"
