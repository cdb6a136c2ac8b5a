"""How a bake ends, given what its passes leave; real ones are in `test_build`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flytune.caches.keys import GraphKey
from flytune.caches.ledger import Event, Kind, Ledger, Lookup
from flytune.caches.manifest import Manifest
from flytune.caches.policy import ServingPolicy, cpu_policy
from flytune.caches.program import ProgramSpec
from flytune.caches.target import Target
from flytune.caches.verdict import Verdict
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape
from flytune.shapes.registry import find_model
from flytune.tuner import bake as stage
from flytune.tuner.bake import Bake, bake
from flytune.tuner.candidate import Enumeration
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import Plan
from flytune.tuner.progress import Progress
from flytune.tuner.publish import Built, Made, manifest_of
from flytune.tuner.summary import built_text
from flytune.tuner.tasks import Coverage

COMPILED = Event(Kind.CPP_COMPILED, "kernel.so")
LOWERED = Event(Kind.LOWERED, "graph")
HIT = Lookup("fx", "hit", "fkey", {"gm": "a graph"})
BYPASS = Lookup("fx", "bypass", "", {}, "mkldnn tensors unpickleable")
SEEN = Event(Kind.COMPILER_QUERY, "g++ --version")
TAKEN = Event(Kind.TAKEN, "", detail=("cpp_bmm", "key"))

Pass = tuple[Event | Lookup, ...]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.here(threads=1)


def plan_in(folder: Path, target: Target, policy: str) -> Plan:
    model = find_model("Qwen3-4B")
    return Plan(
        model=model,
        shapes=(),
        program=ProgramSpec(json.loads(model.raw), "eager"),
        policy=cpu_policy(policy, tokens=(1,), threads=1, attention="eager"),
        target=target,
        profile=None,
        needed_bytes=0,
        work=folder / "work",
        out=folder / "work" / "bundle",
    )


def options_of(plan: Plan, bake_passes: int) -> BuildOptions:
    return BuildOptions(
        model="Qwen3-4B",
        tokens=(1,),
        attention="eager",
        policy=plan.policy.name,
        threads=1,
        out=plan.out,
        work=plan.work,
        ray=None,
        from_bundle=None,
        bake_passes=bake_passes,
    )


def result(entries: Pass) -> dict[str, Any]:
    """What a session that did all that writes."""
    ledger = Ledger()
    for entry in entries:
        if isinstance(entry, Event):
            ledger.add(entry)
        else:
            ledger.add_lookup(entry)
    return {
        "ledger": ledger.to_json(),
        "inductor_config": {"max_autotune": "True"},
        "dropped_guards": ["CLASS_MATCH on type(L['self'])"],
        "peak_gib": 1.0,
    }


def baked(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, *passes: Pass, max_passes: int = 4
) -> Bake:
    """Bake where each pass does the next of `passes`, and more of the last."""

    def run(
        _: Plan,
        policy: ServingPolicy,
        cache_dir: Path,
        number: int,
        search: str,
        **how: bool,
    ) -> dict[str, Any]:
        assert cache_dir.is_dir()
        assert search == "DEFAULT"
        # What a pass stores itself proves nothing.
        last = how.get("precompile", False)
        assert (how["again"], how["variants"]) == (number > 1 and not last, number > 1)
        return result(passes[min(number, len(passes)) - 1])

    monkeypatch.setattr(stage, "_run", run)
    return bake(plan, (), {"hash": "5e1f"}, options_of(plan, max_passes), Progress())


def test_a_bake_ends_when_a_fresh_process_does_nothing(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path, target, "unfrozen")
    first, second = (TAKEN, LOWERED, COMPILED, COMPILED, HIT), (COMPILED, HIT)
    made = baked(plan, monkeypatch, first, second, (SEEN, HIT))
    assert made.passes == ({"lowered": 1, "cpp_compiled": 2}, {"cpp_compiled": 1}, {})
    assert (made.settled, dict(made.remaining), made.uncacheable) == (True, {}, ())
    assert made.keys == (GraphKey("fkey", HIT.parts),)
    # A hit takes no candidate; what the first pass took is what was baked.
    assert made.taken == {("cpp_bmm", "key")}


def test_the_first_pass_proves_nothing(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path, target, "unfrozen")
    made = baked(plan, monkeypatch, (HIT,), (COMPILED, HIT), (HIT,))
    assert made.passes == ({}, {"cpp_compiled": 1}, {})


def test_precompiled_entries_are_stored_last(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path, target, "unfrozen")
    plan = replace(plan, policy=plan.policy.with_precompiled())
    traced = Event(Kind.TRACED, "Layer.forward")
    first, settled = (TAKEN, LOWERED, traced, HIT), (traced,)
    made = baked(plan, monkeypatch, first, settled, settled)
    assert made.passes == ({"lowered": 1}, {}, {})
    assert made.dropped_guards == ("CLASS_MATCH on type(L['self'])",)
    # A hit in AOTAutograd's cache looks no further: the first pass told the key.
    assert made.keys == (GraphKey("fkey", HIT.parts),)
    undone = baked(plan, monkeypatch, first, settled, (COMPILED,))
    assert (undone.settled, undone.remaining) == (False, {"cpp_compiled": 1})


def test_a_bake_that_never_settles_says_so(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path, target, "unfrozen")
    made = baked(plan, monkeypatch, (COMPILED, HIT), max_passes=3)
    assert made.passes == ({"cpp_compiled": 1},) * 3
    assert (made.settled, made.remaining) == (False, {"cpp_compiled": 1})
    manifest = unlisted(plan, made)
    assert manifest.bake == {
        "passes": [{"cpp_compiled": 1}] * 3,
        "settled": False,
        "remaining": {"cpp_compiled": 1},
        "uncacheable": [],
        "dropped_guards": None,
        "peak_gib": 1.0,
    }
    verdict = Verdict((), (), {}, {}, {}, 0.0, None, 0.0)
    lines = built_text(Built(tmp_path / "b", manifest, verdict)).splitlines()
    assert "baked   3 passes, not settled" in lines


@pytest.mark.parametrize(
    ("kind", "vendor", "said"),
    [("cuda", "amd", True), ("cuda", "nvidia", False), ("cpu", "amd", False)],
)
def test_attention_is_anothers_on_amds_gpus_alone(
    tmp_path: Path,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    vendor: str,
    said: bool,
) -> None:
    plan = plan_in(tmp_path, target, "unfrozen")
    manifest = unlisted(plan, baked(plan, monkeypatch, (HIT,)))
    hardware = {**manifest.target["hardware"], "kind": kind, "vendor": vendor}
    manifest = replace(manifest, target={**manifest.target, "hardware": hardware})
    verdict = Verdict((), (), {}, {}, {}, 0.0, None, 0.0)
    text = built_text(Built(tmp_path / "b", manifest, verdict))
    assert ("attention is not ours" in text) == said


def test_a_file_of_shapes_says_whose_they_are(tmp_path: Path, target: Target) -> None:
    shape = GemmShape("mm", 8, 64, 64, tp=8, ep=2, engine="vllm")
    plan = replace(plan_in(tmp_path, target, "unfrozen"), shapes=(shape,))
    model = unlisted(plan, None).model
    assert (model["tp"], model["ep"], model["engine"]) == (1, 1, "transformers")
    model = unlisted(plan, None, by_hand=tmp_path / "a.csv").model
    assert (model["tp"], model["ep"], model["engine"]) == (8, 2, "vllm")


def unlisted(plan: Plan, made: Bake | None, **changes: Any) -> Manifest:
    """The manifest of a build that offered no list."""
    found = Enumeration((), "ab", None, {})
    options = replace(options_of(plan, 3), **changes)
    whole = Made(plan, options, found, Coverage((), (), ()))
    return manifest_of(whole, (), made)


@pytest.mark.parametrize("policy", ["unfrozen", "frozen"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_list_that_was_not_decided_is_refused(
    tmp_path: Path,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    number: int,
) -> None:
    plan = plan_in(tmp_path, target, policy)
    tuned = Event(Kind.TUNED, "bmm key", detail=("one", "two"))
    passes: list[Pass] = [(COMPILED,)] * (number - 1) + [(tuned,)]
    with pytest.raises(FlytuneError) as caught:
        baked(plan, monkeypatch, *passes)
    assert str(caught.value) == (
        "Inductor tuned in the bake, 1 lists were not decided: bmm key: one, two"
    )


@pytest.mark.parametrize("state", ["hit", "miss"])
@pytest.mark.parametrize("layer", ["aot", "fx"])
def test_a_frozen_graph_that_torch_caches_is_refused(
    tmp_path: Path,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    layer: str,
    state: str,
) -> None:
    cached = Lookup(layer, state, "key", {})
    with pytest.raises(FlytuneError) as caught:
        baked(plan_in(tmp_path, target, "frozen"), monkeypatch, (BYPASS, cached))
    assert str(caught.value) == (
        "torch caches a frozen graph, which holds the bake's random weights: "
        f"{layer} key"
    )
    assert caught.value.hint == "build under the unfrozen policy"


def test_frozen_graphs_that_torch_refuses_to_cache_are_no_work_left(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path, target, "frozen")
    made = baked(plan, monkeypatch, (LOWERED, COMPILED, BYPASS), (LOWERED, BYPASS))
    assert made.passes == ({"lowered": 1, "cpp_compiled": 1}, {"lowered": 1})
    assert (made.settled, made.uncacheable) == (True, (BYPASS.reason,))
    more = baked(plan, monkeypatch, (LOWERED, LOWERED, BYPASS))
    assert len(more.passes) == 4
    assert (more.settled, more.remaining) == (False, {"lowered": 1})


def test_a_bake_starts_anew(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path, target, "unfrozen")
    (plan.work / "bake").mkdir(parents=True)
    (plan.work / "bake" / "torn").touch()
    assert list(baked(plan, monkeypatch, (HIT,)).cache_dir.iterdir()) == []
