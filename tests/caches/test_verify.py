"""How a session's result becomes a verdict; the runs are in `test_verify_failures`."""

import math
from typing import Any

import pytest
from bundles import manifest

from flytune.caches.judge import judge
from flytune.caches.keys import GraphKey
from flytune.caches.ledger import ASIDE, Event, Kind, Ledger, Lookup
from flytune.caches.policy import cpu_policy
from flytune.caches.program import Bake, ProgramSpec
from flytune.caches.verdict import Verdict

CONFIG = {"max_autotune": "True"}
HIT = Lookup("fx", "hit", "fkey", {"gm": "a graph"})
BYPASS = Lookup("fx", "bypass", "", {}, "mkldnn tensors unpickleable")
CALL = ["layer", 8, "first", 1.5, 0.01]


def verdict(
    *entries: Event | Lookup,
    policy: str = "unfrozen",
    calls: Any = (CALL,),
    config: Any = None,
    written: tuple[str, ...] = (),
    graphs: int | None = None,
    precompiled: bool = False,
    dynamic: bool = False,
    bake: Bake = "layers",
) -> Verdict:
    ledger = Ledger()
    for entry in entries:
        if isinstance(entry, Event):
            ledger.add(entry)
        else:
            ledger.add_lookup(entry)
    for _ in calls if graphs is None else range(graphs):
        ledger.add_graph()
    serving = cpu_policy(policy, tokens=(8,), threads=1, attention="eager")
    program = ProgramSpec({"num_hidden_layers": 9}, "eager", bake=bake).to_json()
    result = {
        "ledger": ledger.to_json(),
        "inductor_config": CONFIG if config is None else config,
        "calls": calls,
        "peak_gib": 1.0,
    }
    if precompiled:
        serving = serving.with_precompiled()
    if dynamic:
        serving = serving.with_dynamic()
    own = {"program": program, "policy": serving.to_json()}
    return judge(
        result,
        manifest(inductor_config=CONFIG, **own),
        serving,
        (GraphKey("fkey", HIT.parts),),
        list(written),
    )


def test_a_hit() -> None:
    again = ["layer", 8, "again", 0.1, None]
    queries = (Event(Kind.COMPILER_QUERY, "g++"), Event(Kind.LISTED, "bmm"))
    found = verdict(HIT, HIT, *queries, calls=(CALL, again), written=("locks/a",))
    assert found.ok(strict=True)
    assert (found.work, found.aside) == ({}, {"listed": 1, "compiler_query": 1})
    assert found.lookups == {"fx hit": 2}
    assert (found.first_call_s, found.worst_error) == (1.5, 0.01)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in Kind if kind not in ASIDE],
)
def test_each_kind_of_work_fails(kind: Kind) -> None:
    found = verdict(HIT, Event(kind, "something", detail=("a", "b")))
    assert not found.ok(strict=False)
    assert found.work == {str(kind): 1}
    assert found.failures == (
        {
            Kind.TUNED: "tuned: something: no time for candidate a, b",
            Kind.BENCHMARKED: "benchmarked: 1 times",
        }.get(kind, f"{kind}: something"),
    )


def test_benchmarks_are_part_of_their_list() -> None:
    tuned = Event(Kind.TUNED, "bmm", detail=("a",))
    found = verdict(HIT, Event(Kind.BENCHMARKED, ""), tuned)
    assert found.failures == ("tuned: bmm: no time for candidate a",)


def test_a_miss_is_named_once_with_its_part() -> None:
    miss = Lookup("fx", "miss", "fother", {"gm": "b another"})
    assert verdict(miss, miss).failures == (
        "graph missed: fother: gm: baked `graph`, here `another`",
    )
    aot = Lookup("aot", "miss", "akey", {})
    assert verdict(HIT, aot).failures == ("graph missed in AOTAutograd: akey",)


def test_torch_may_refuse_frozen_graphs_alone() -> None:
    lowered = Event(Kind.LOWERED, "graph")
    found = verdict(BYPASS, BYPASS, lowered, lowered, policy="frozen")
    assert found.ok(strict=False)
    assert not found.ok(strict=True)
    assert found.uncacheable == ("2 graphs lowered again: mkldnn tensors unpickleable",)
    more = verdict(BYPASS, lowered, lowered, policy="frozen")
    assert more.failures == ("lowered: graph",)
    unfrozen = verdict(BYPASS, lowered)
    assert unfrozen.uncacheable == ()
    assert unfrozen.failures == (
        "torch refused to cache a graph: mkldnn tensors unpickleable",
        "lowered: graph",
    )


@pytest.mark.parametrize("state", ["hit", "miss"])
@pytest.mark.parametrize("layer", ["aot", "fx"])
def test_a_frozen_graph_that_was_cached(layer: str, state: str) -> None:
    found = verdict(BYPASS, Lookup(layer, state, "key", {}), policy="frozen")
    assert found.failures == (f"a frozen graph was cached: {layer} key",)


@pytest.mark.parametrize("error", [0.031, 2.0, math.inf, math.nan])
def test_another_output_than_eagers(error: float) -> None:
    found = verdict(HIT, HIT, calls=(CALL, ["head", 1, "first", 0.1, error]))
    assert found.failures == (
        f"output differs from eager: head at 1 tokens: {error:.3g} exceeds 0.03",
    )
    assert found.worst_error == (error if math.isfinite(error) else None)


def test_a_deeper_graph_may_differ_more() -> None:
    calls = (["model", 8, "first", 1.0, 0.08], ["model", 1, "first", 1.0, 0.1])
    assert verdict(HIT, HIT, calls=calls, bake="model").failures == (
        "output differs from eager: model at 1 tokens: 0.1 exceeds 0.09",
    )


def test_a_run_of_no_graph_proves_nothing() -> None:
    calls = (CALL, ["head", 8, "first", 0.1, 0.0])
    fell_back = verdict(HIT, HIT, calls=calls, graphs=1)
    assert fell_back.failures == ("graphs that did not run: 2 first calls, 1 graphs",)
    assert not verdict(calls=()).ok(strict=False)


def test_a_dynamic_graph_runs_for_all_sizes() -> None:
    calls = [["layer", n, "first", 0.1, 0.0] for n in (9, 5, 1)]
    sizes = Event(Kind.DYNAMIC, "a graph has dynamic sizes")
    found = verdict(HIT, sizes, calls=calls, graphs=2, dynamic=True)
    assert (found.failures, found.work, found.aside) == ((), {}, {"dynamic": 1})
    fell_back = verdict(HIT, calls=calls, graphs=0, dynamic=True)
    assert fell_back.failures == ("graphs that did not run: 1 first calls, 0 graphs",)


def test_with_precompiled_entries_nothing_is_traced() -> None:
    entry = Lookup("dynamo", "hit", "Layer.forward")
    assert verdict(entry, precompiled=True).ok(strict=True)
    traced = Event(Kind.TRACED, "Layer.forward")
    assert verdict(HIT, traced).aside == {"traced": 1}
    absent = Lookup("dynamo", "miss", "Layer.forward")
    found = verdict(absent, HIT, traced, precompiled=True)
    assert found.work == {"traced": 1}
    assert found.failures == (
        "no precompiled entry: Layer.forward",
        "traced: Layer.forward",
    )


def test_settings_that_differ() -> None:
    found = verdict(HIT, config={"max_autotune": "False", "new": "1"})
    assert found.failures == (
        "Inductor setting differs: max_autotune: baked `True`, here `False`",
        "Inductor setting differs: new: baked `absent`, here `1`",
    )


def test_work_that_escaped_the_ledger() -> None:
    files = ("ab/new.so", "ab/new.so.load_ok", "locks/ab", "ab/x.lock")
    files += ("ab/new.cpp", "ab/wrapper.py")
    assert verdict(HIT, written=files).failures == ("files were written: ab/new.so",)
