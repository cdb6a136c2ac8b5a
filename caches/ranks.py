"""The ranks that a command's processes were, and what each needs of a bundle.

A rank that has to compile what the others load keeps them waiting in their next
collective, until that gives up: so a bundle holds every rank's part, or none is used.
"""

from collections.abc import Iterable
from typing import Any

from flytune.caches.ledger_file import ProcessLedger

WORLD_SIZE = "world_size"


def ranks_row(processes: Iterable[ProcessLedger]) -> dict[str, Any] | None:
    """Return the manifest's `bake.ranks`; None where there was one rank at most.

    `world_size` is their number, `shared` whether all look for the same graphs.
    """
    parts = _parts(processes)
    if not parts:
        return None
    size = max(size for _, size in parts)
    keys = list(parts.values())
    return {WORLD_SIZE: size, "shared": all(key == keys[0] for key in keys)}


def absent_ranks(processes: Iterable[ProcessLedger]) -> tuple[str, ...]:
    """Name the ranks that looked for no graph while others of their group did."""
    parts = _parts(processes)
    return tuple(
        f"rank {rank} of {size}"
        for size in sorted({size for _, size in parts})
        for rank in range(size)
        if (rank, size) not in parts
    )


def _parts(
    processes: Iterable[ProcessLedger],
) -> dict[tuple[int, int], frozenset[tuple[str, str]]]:
    """Return the keys that each rank of a group looked for."""
    parts: dict[tuple[int, int], frozenset[tuple[str, str]]] = {}
    for process in processes:
        if process.rank is None or process.rank[1] < 2:
            continue
        keys = frozenset((k.layer, k.key) for k in process.lookups)
        if keys:
            parts[process.rank] = parts.get(process.rank, frozenset()) | keys
    return parts
