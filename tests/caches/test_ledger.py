"""The ledger, in real processes that compile real programs."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from builds import run_python

from flytune.caches.inductor import Timing, write_timings
from flytune.caches.ledger import (
    ASIDE,
    Event,
    Kind,
    Ledger,
    Lookup,
    read_events,
    read_lookups,
    summary,
)

# Compiles one module with a ledger and prints what the ledger holds.
RUN = """
import json, sys
from flytune.caches.ledger import Ledger
from flytune.caches.ledger_hooks import arm
from flytune.caches.policy import cpu_policy
policy, module = sys.argv[1:]
cpu_policy(policy, tokens=(8,), threads=1, attention="eager").apply()
ledger = Ledger()
arm(ledger)
import torch

class Products(torch.nn.Module):
    inputs = (torch.randn(4, 8, 64).bfloat16(), torch.randn(4, 64, 32).bfloat16())
    def forward(self, a, b):
        return torch.relu(torch.bmm(a, b))

class Linear(torch.nn.Module):
    inputs = (torch.randn(8, 64).bfloat16(),)
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 32, bias=False, dtype=torch.bfloat16)
    def forward(self, a):
        return self.linear(a)

module = {"bmm": Products, "linear": Linear}[module]().eval()
with torch.no_grad():
    output = torch.compile(module, dynamic=False)(*module.inputs)
    torch.testing.assert_close(output, module(*module.inputs), atol=0.5, rtol=0.1)
print(json.dumps(ledger.to_json()))
"""
KNOWN_ISA: Mapping[str, str] = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}


def run(
    policy: str, module: str, cache: Path, env: Mapping[str, str] = KNOWN_ISA
) -> tuple[dict[str, int], tuple[Event, ...], tuple[Lookup, ...]]:
    settings = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    printed = run_python(RUN, policy, module, env={**settings, **env})
    row = json.loads(printed.splitlines()[-1])
    events = read_events(row["events"])
    work = summary(e for e in events if e.kind not in ASIDE)
    return work, events, read_lookups(row["lookups"])


def of_kind(events: tuple[Event, ...], kind: Kind) -> list[Event]:
    return [event for event in events if event.kind is kind]


def timings(cache: Path) -> tuple[Path, tuple[str, str, str], dict[str, float]]:
    """Inductor's timings file, the key of its one list, and that list's times."""
    (path,) = (cache / "cache").iterdir()
    row = json.loads(path.read_text())["cache"]
    (op,) = row
    (inputs,) = row[op]
    (precision,) = row[op][inputs]
    return path, (op, inputs, precision), row[op][inputs][precision]


def forget_graphs(cache: Path) -> None:
    for file in [*cache.glob("fxgraph/*/*/*"), *cache.glob("aotautograd/*/*")]:
        file.unlink()


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cold") / "cache"


def test_everything_on_an_empty_directory_and_nothing_after(cold: Path) -> None:
    work, events, lookups = run("unfrozen", "bmm", cold, env={})
    assert work["lowered"] == work["tuned"] == 1
    (listed,) = of_kind(events, Kind.LISTED)
    assert listed.what == "bmm of 2 candidates"
    # The candidate and the graph's own kernel, each with a library of its own.
    libraries = {event.what for event in of_kind(events, Kind.CPP_COMPILED)}
    assert libraries == {path.name for path in cold.rglob("*.main.so")}
    assert len(libraries) == 2
    probes = {event.what for event in of_kind(events, Kind.ISA_PROBED)}
    assert probes
    assert probes.isdisjoint(libraries)
    assert of_kind(events, Kind.HEADER)
    assert of_kind(events, Kind.BENCHMARKED)
    commands = [event.what for event in of_kind(events, Kind.COMPILER_QUERY)]
    assert any("--version" in command for command in commands)
    assert {(k.layer, k.state) for k in lookups} == {("aot", "miss"), ("fx", "miss")}
    *_, times = timings(cold)
    (tuned,) = of_kind(events, Kind.TUNED)
    assert sorted(tuned.detail) == sorted(times)

    work, events, lookups = run("unfrozen", "bmm", cold, env={})
    assert work == {}
    assert {(k.layer, k.state) for k in lookups} == {("aot", "hit"), ("fx", "hit")}
    assert of_kind(events, Kind.COMPILER_QUERY)


def test_the_absent_candidate_alone_is_named(cold: Path) -> None:
    path, (op, inputs, precision), times = timings(cold)
    absent = next(name for name in times if name.startswith("Cpp"))
    row = json.loads(path.read_text())
    del row["cache"][op][inputs][precision][absent]
    path.write_text(json.dumps(row))
    forget_graphs(cold)
    work, events, _ = run("unfrozen", "bmm", cold)
    assert (work["lowered"], work["tuned"]) == (1, 1)
    (tuned,) = of_kind(events, Kind.TUNED)
    assert tuned.detail == (absent,)


@pytest.fixture(scope="module")
def frozen_list(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The timings of a frozen linear, which offers a library call and a template."""
    cache = tmp_path_factory.mktemp("frozen") / "cache"
    _, _, lookups = run("frozen", "linear", cache)
    assert {k.state for k in lookups} == {"bypass"}
    return cache


@pytest.mark.parametrize("loser", ["aten", "cpp"])
def test_inductor_takes_infinity(loser: str, frozen_list: Path, tmp_path: Path) -> None:
    path, key, times = timings(frozen_list)
    is_cpp = {name: name.startswith("Cpp") for name in times}
    assert sorted(is_cpp.values()) == [False, True]
    rows = [
        Timing(*key, name, math.inf if cpp == (loser == "cpp") else 1.0)
        for name, cpp in is_cpp.items()
    ]
    # Only the timings: what is needed is compiled, what lost is not.
    written = write_timings(tmp_path, json.loads(path.read_text())["system"], rows)
    assert "Infinity" in written.read_text()
    work, events, _ = run("frozen", "linear", tmp_path)
    assert work["lowered"] == 1
    assert work.keys().isdisjoint({"tuned", "benchmarked"})
    assert bool(of_kind(events, Kind.CPP_COMPILED)) == (loser == "aten")
    sources = [path.read_text() for path in tmp_path.rglob("*.main.cpp")]
    assert any("micro_gemm" in text for text in sources) == (loser == "aten")


def test_json_holds_everything() -> None:
    ledger = Ledger()
    ledger.add(Event(Kind.TUNED, "mm", 1.25, ("a", "b")))
    ledger.add(Event(Kind.HEADER, "x.gch"))
    ledger.add_lookup(Lookup("fx", "miss", "key", {"part": "hash value"}, "why"))
    row = json.loads(json.dumps(ledger.to_json()))
    assert read_events(row["events"]) == ledger.events
    assert read_lookups(row["lookups"]) == ledger.lookups
    assert summary(ledger.events) == {"tuned": 1, "header": 1}
