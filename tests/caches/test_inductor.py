import json
import math
from pathlib import Path

import pytest
from builds import run_python

from flytune.caches.inductor import (
    Timing,
    decision_ms,
    forget_stored_graphs,
    timings_file,
    write_timings,
)
from flytune.shapes.errors import FlytuneError

# Graphs that are lowered before the search is widened, while it is, and after.
WIDEN = """
import json
import torch._inductor.config as config
from torch._inductor.graph import GraphLowering

def run(self, *args):
    seen.append([config.max_autotune_gemm_search_space, list(args)])
    if args == ("fails",):
        raise ZeroDivisionError
    return "lowered"

GraphLowering.run = run
from flytune.caches.inductor import portable_config, widen_search
seen = []
before = portable_config()
widen_search("EXHAUSTIVE")
graph = object.__new__(GraphLowering)
said = graph.run("x")
try:
    graph.run("fails")
except ZeroDivisionError:
    pass
# What graph keys are made of is what it was.
print(json.dumps([seen, said, portable_config() == before]))
"""

WEIGH = """
import json
import torch._inductor.config as config
from torch._inductor.scheduler import Scheduler
from flytune.caches.compat import fusion_setting
setting = fusion_setting()

def speedup(self, *nodes):
    seen.append([getattr(config, setting), list(nodes)])
    return "fused"

Scheduler.speedup_by_fusion = speedup
from flytune.caches.inductor import portable_config, weigh_fusions
seen, scheduler = [], object.__new__(Scheduler)
before = portable_config()
scheduler.speedup_by_fusion("a", "b")
weigh_fusions()
said = scheduler.speedup_by_fusion("a", "b")
# What graph keys are made of is what it was.
print(json.dumps([seen, said, portable_config() == before]))
"""

# Kernels with one configuration, of a descent or not, and with several.
KEEP = """
import json
from types import SimpleNamespace
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

def precompile(self, *args, **kwargs):
    seen.append([self.inductor_meta, list(args), kwargs])
    return "compiled"

CachingAutotuner.precompile = precompile
from flytune.caches.inductor import keep_descents
keep_descents()
seen, found = [], SimpleNamespace(found_by_coordesc=True)
for configs in ([found], [SimpleNamespace()], [found, found], [], None):
    kernel = object.__new__(CachingAutotuner)
    kernel.configs = configs
    kernel.inductor_meta = {"coordinate_descent_tuning": True, "other": 1}
    assert kernel.precompile(1, warm_cache_only=True) == "compiled"
print(json.dumps(seen))
"""

SYSTEM = {"hash": "5e1f", "version": {"triton": "3"}, "device": {"name": None}}


def test_the_file_is_where_and_what_inductor_reads(tmp_path: Path) -> None:
    timings = [
        Timing("bmm", "key", "highest", "a", 0.5),
        Timing("bmm", "key", "highest", "b", math.inf),
        Timing("bmm", "other", "highest", "a", 0.25),
        Timing("mm", "key", "highest", "a", 2.0),
        Timing("mm", "key", "highest", "a", 2.0),
    ]
    path = write_timings(tmp_path, SYSTEM, timings)
    assert path == timings_file(tmp_path, "5e1f") == tmp_path / "cache" / "5e1f"
    assert [p.name for p in path.parent.iterdir()] == ["5e1f"]
    assert json.loads(path.read_text()) == {
        "system": SYSTEM,
        "cache": {
            "bmm": {
                "key": {"highest": {"a": 0.5, "b": math.inf}},
                "other": {"highest": {"a": 0.25}},
            },
            "mm": {"key": {"highest": {"a": 2.0}}},
        },
    }


def test_one_candidate_has_one_time(tmp_path: Path) -> None:
    timings = [Timing("mm", "key", "highest", "a", ms) for ms in (1.0, 2.0)]
    with pytest.raises(FlytuneError, match="two times in one list: `a`"):
        write_timings(tmp_path, SYSTEM, timings)
    assert not (tmp_path / "cache").exists()


def test_the_winner_leads() -> None:
    # Within the tie band the search may prefer the slower one.
    medians = {"library": 10.2, "template": 10.0, "slow": 20.0, "failed": None}
    assert decision_ms("library", medians) == {
        "library": pytest.approx(0.0102),
        "template": pytest.approx(0.0102102),
        "slow": 0.02,
        "failed": math.inf,
    }


def test_a_winner_without_a_time_still_leads() -> None:
    medians = {"a": None, "b": None}
    assert decision_ms("a", medians) == {"a": 1.0, "b": math.inf}


def test_a_wider_search_is_in_no_key() -> None:
    seen, lowered, same = json.loads(run_python(WIDEN))
    assert seen == [["EXHAUSTIVE", ["x"]], ["EXHAUSTIVE", ["fails"]]]
    assert (lowered, same) == ("lowered", True)


def test_a_fusion_is_weighed_by_the_builds_own_times_under_the_same_keys() -> None:
    seen, said, same = json.loads(run_python(WEIGH))
    assert seen == [[True, ["a", "b"]], [False, ["a", "b"]]]
    assert (said, same) == ("fused", True)


def test_only_what_a_descent_has_found_is_kept_as_final() -> None:
    metas = [row[0] for row in json.loads(run_python(KEEP))]
    tuned = {"coordinate_descent_tuning": True, "other": 1}
    steps = {"coordinate_descent_tuning": False, "dynamic_scale_rblock": False}
    assert metas == [{**steps, "other": 1}, tuned, tuned, tuned, tuned]


def test_graphs_are_forgotten_and_the_rest_stays(tmp_path: Path) -> None:
    names = ("fxgraph/ab/x", "aotautograd/y", "triton/0/K/k.cubin", "cache/5e1f")
    for name in (*names, "ab/kernel.best_config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    forget_stored_graphs(tmp_path)
    forget_stored_graphs(tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ab", "cache", "triton"]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3
