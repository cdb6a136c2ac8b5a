"""What a build from nothing takes: wall time and memory, under both policies.

`python ci/bench/build_cost.py [--model Llama-3.3-70B] [--tokens 1,64]`

Memory is read four times a second: the largest process, and what the whole machine uses
above the start, which is only of the build on a machine that does nothing else.
"""

import os
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import click
import psutil
from builds import build_bundle
from results import write_result

from flytune.caches.target import Target

GIB = 2**30
POLICIES = ("unfrozen", "frozen")


class MemoryWatch:
    """Samples the memory of this process's descendants until it is left."""

    def __init__(self) -> None:
        self.largest_process_gib = 0.0
        self.machine_gib = 0.0
        self._start = psutil.virtual_memory().used
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.25):
            used = (psutil.virtual_memory().used - self._start) / GIB
            self.machine_gib = max(self.machine_gib, used)
            for process in psutil.Process().children(recursive=True):
                try:
                    size = process.memory_info().rss / GIB
                except psutil.NoSuchProcess:
                    continue
                self.largest_process_gib = max(self.largest_process_gib, size)


@click.command()
@click.option("--model", default="Llama-3.3-70B", show_default=True)
@click.option("--tokens", default="1,64", show_default=True)
def main(model: str, tokens: str) -> None:
    """Build under each policy, print and write the result file."""
    figures: dict[str, Any] = {"model": model, "tokens": tokens}
    rows = []
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as directory:
        for policy in POLICIES:
            row = _build(model, tokens, policy, Path(directory))
            print(row)
            rows.append(row)
            figures[policy] = {name: row[name] for name in _QUOTED}
    slug = Target.here(threads=len(os.sched_getaffinity(0))).slug
    print(f"wrote {write_result('build_cost', slug, figures, rows)}")


_QUOTED = ("wall_s", "machine_gib", "bundle_bytes", "lists", "tuned", "verified")


def _build(model: str, tokens: str, policy: str, directory: Path) -> dict[str, Any]:
    out = directory / f"{policy}.tar.zst"
    start = time.perf_counter()
    with MemoryWatch() as memory:
        bundle = build_bundle(
            model, tokens, policy, out, work=directory / f"work-{policy}"
        )
    manifest = bundle.manifest
    return {
        "policy": policy,
        "wall_s": round(time.perf_counter() - start, 1),
        "largest_process_gib": round(memory.largest_process_gib, 1),
        "machine_gib": round(memory.machine_gib, 1),
        "bundle_bytes": out.stat().st_size,
        "lists": manifest.coverage["lists"],
        "tuned": manifest.coverage["tuned"],
        "passes": manifest.bake["passes"],
        "verified": bool(manifest.verify and manifest.verify["ok"]),
        "winners": [w["backend"] for w in manifest.winners if w["candidates"] > 1],
    }


if __name__ == "__main__":
    main()
