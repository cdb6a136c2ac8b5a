"""Inductor's files and keys: where it looks, and what it must find there.

Every private interface of torch that concerns cache files is touched here and in
`compat` and `ledger`, nowhere else.
"""

import gc
import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flytune.caches.compat import fusion_setting, private, wrap
from flytune.shapes.errors import FlytuneError

CODECACHE = "torch._inductor.codecache"
SCHEDULER = "torch._inductor.scheduler"


def torch_key() -> str:
    """Return the hash of torch's own sources, part of every graph key, as hex."""
    return bytes(private(CODECACHE, "torch_key")[2]()).hex()


def triton_key() -> str:
    """Return the hash of Triton's sources and libraries, part of its kernels' keys."""
    return str(private("torch._inductor.runtime.triton_compat", "triton_key")[2]())


def system_info() -> dict[str, Any]:
    """Return what Inductor's timings file is named after, with its `hash`."""
    return dict(private(CODECACHE, "CacheBase.get_system")[2]())


def forget_graphs() -> None:
    """Free the compiled graphs of this process; a frozen one holds its weights.

    Inductor keeps every module that it loaded, and the packed weights on it.
    """
    import torch

    torch._dynamo.reset()
    cache = private(CODECACHE, "PyCodeCache.cache_clear")[0]
    for module in cache.modules:
        sys.modules.pop(module.__name__, None)
    cache.cache_clear()
    gc.collect()


def widen_search(space: str) -> None:
    """List candidates of another search space from now on, under the same graph keys.

    A graph's key is made before it is lowered: so serving, which hits, has a winner
    that its own shorter list would not hold, and lists few where it misses.

    Args:
        space: "DEFAULT" or "EXHAUSTIVE", as `max_autotune_gemm_search_space`.
    """
    import torch._inductor.config

    patch = torch._inductor.config.patch

    def widened(inner: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with patch(max_autotune_gemm_search_space=space):
                return inner(*args, **kwargs)

        return run

    wrap("torch._inductor.graph", "GraphLowering.run", widened)


def weigh_fusions() -> None:
    """Decide whether a template takes an epilogue in by the times of the build.

    Inductor would time the kernel that has it once more, and the epilogue alone, by a
    timer whose samples hold the host's time for a launch: that is most of a small
    epilogue's, which makes any template look worth its fusion. From now on the build's
    own times of the candidates are weighed, with what the epilogue moves of memory, as
    Inductor does where it may not time: under the same graph keys.
    """
    import torch._inductor.config

    patch, setting = torch._inductor.config.patch, fusion_setting()

    def weighed(inner: Any) -> Any:
        def speedup(*args: Any, **kwargs: Any) -> Any:
            with patch({setting: False}):
                return inner(*args, **kwargs)

        return speedup

    wrap(SCHEDULER, "Scheduler.speedup_by_fusion", weighed)


def portable_config() -> dict[str, str]:
    """Return every Inductor setting that is part of a graph's key, as `repr`."""
    import torch._inductor.config

    values = torch._inductor.config.save_config_portable()
    return {name: repr(value) for name, value in sorted(values.items())}


def take_compile_seconds() -> dict[str, float]:
    """Return what torch has spent since the last call, by its own names.

    A step's seconds are in those of each step around it too. Resetting Dynamo forgets
    them.
    """
    metrics = private("torch._dynamo.utils", "compilation_time_metrics")[2]
    taken = {name: round(sum(seconds), 4) for name, seconds in metrics.items()}
    metrics.clear()
    return taken


def keep_descents() -> None:
    """Store kernels that coordinate descent has tuned so that a hit trusts them.

    torch forgets what is tuned by steps when it stores a kernel in a graph, and a hit
    repeats the descent, or times it against itself with half the block. From now on a
    kernel that is made with the configuration which an earlier process found is stored
    as one that needs neither.
    """

    def kept(inner: Any) -> Any:
        def precompile(self: Any, *args: Any, **kwargs: Any) -> Any:
            configs = self.configs or []
            if len(configs) == 1 and getattr(configs[0], "found_by_coordesc", False):
                for step in ("coordinate_descent_tuning", "dynamic_scale_rblock"):
                    self.inductor_meta[step] = False
            return inner(self, *args, **kwargs)

        return precompile

    heuristics = "torch._inductor.runtime.triton_heuristics"
    wrap(heuristics, "CachingAutotuner.precompile", kept)


def forget_stored_graphs(cache_dir: Path) -> None:
    """Remove the graphs of a cache directory; kernels and what was tuned stay.

    Source: `FxGraphCache._get_tmp_dir`, and its like in AOTAutograd's cache.
    """
    for name in ("fxgraph", "aotautograd"):
        shutil.rmtree(cache_dir / name, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Timing:
    """One decision as Inductor's timings file holds it."""

    op: str
    inputs_key: str
    precision: str
    choice_hash: str
    ms: float
    """Milliseconds; infinity for a candidate that must never be chosen."""


def timings_file(cache_dir: Path, system_hash: str) -> Path:
    """Return where Inductor reads GEMM timings (`PersistentCache` in codecache.py)."""
    return cache_dir / "cache" / system_hash


def write_timings(
    cache_dir: Path, system: Mapping[str, Any], timings: Iterable[Timing]
) -> Path:
    """Write the timings file that Inductor consults before it would benchmark.

    A failed candidate is written as infinity: one that is absent makes Inductor
    compile and time the whole list again.

    Raises:
        FlytuneError: two different times for one candidate of one list.
    """
    cache: dict[str, Any] = {}
    for timing in timings:
        rows = (
            cache.setdefault(timing.op, {})
            .setdefault(timing.inputs_key, {})
            .setdefault(timing.precision, {})
        )
        if rows.setdefault(timing.choice_hash, timing.ms) != timing.ms:
            raise FlytuneError(
                f"one candidate has two times in one list: `{timing.choice_hash}`"
            )
    path = timings_file(cache_dir, str(system["hash"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps({"system": dict(system), "cache": cache}, indent=1))
    part.replace(path)
    return path


def stored_timings(
    row: Mapping[str, Any], path: str
) -> Iterator[tuple[str, str, str, Mapping[str, float]]]:
    """Yield the lists of a timings file: op, inputs' key, precision, and by choice ms.

    Args:
        row: The file's JSON.
        path: What the file is called, for the error.

    Raises:
        FlytuneError: it has another form.
    """
    try:
        for op, by_inputs in row["cache"].items():
            for inputs, by_precision in by_inputs.items():
                for precision, times in by_precision.items():
                    yield op, inputs, precision, dict(times)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FlytuneError(f"bundle's timings cannot be read: {path}") from error


def seed_timings(path: Path) -> None:
    """Put a timings file wherever this process looks for one, before it does.

    An engine may name another cache directory than its environment did.
    """
    where = private(CODECACHE, "CacheBase.get_local_cache_path")[2]

    def seeded(inner: Any) -> Any:
        def lookup(*args: Any, **kwargs: Any) -> Any:
            target = Path(where())
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_name(f".{target.name}.{os.getpid()}")
                shutil.copyfile(path, part)
                part.replace(target)
            return inner(*args, **kwargs)

        return lookup

    wrap(CODECACHE, "PersistentCache.lookup", seeded)


def decision_ms(
    winner: str, medians_us: Mapping[str, float | None]
) -> dict[str, float]:
    """Return milliseconds that make Inductor take `winner` of one list.

    Inductor takes the least time; a tie that the search broke otherwise is written
    so that the winner leads by a thousandth, and a candidate without a time loses.
    A winner that could not be timed gets a nominal millisecond and all others lose.
    The records keep what was measured.
    """
    lead = medians_us[winner]
    if lead is None:
        return {c: 1.0 if c == winner else math.inf for c in medians_us}
    result = {}
    for choice, median in medians_us.items():
        if choice == winner:
            result[choice] = lead / 1e3
        elif median is None:
            result[choice] = math.inf
        else:
            result[choice] = max(median, lead * 1.001) / 1e3
    return result


def key_parts(debug_lines: Iterable[str]) -> dict[str, str]:
    """Return the parts of a graph's key, by name, as "hash value".

    Source: `FxGraphCachePickler.debug_lines`, "[hash] name: value" a line. Values
    are cut: they are for a person, the hash tells whether they differ.
    """
    parts = {}
    for line in debug_lines:
        digest, _, rest = line.partition("] ")
        name, _, value = rest.partition(": ")
        parts[name] = f"{digest[1:]} {' '.join(value.split())[:600]}"
    return parts
