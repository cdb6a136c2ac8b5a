import json
from dataclasses import replace
from typing import Any

import pytest
from builds import run_python

from flytune.caches.hook.flytune_torch import mends_for
from flytune.caches.policy import (
    ServingPolicy,
    cpu_policy,
    cuda_policy,
    rocm_policy,
    uses_flydsl,
)
from flytune.shapes.errors import FlytuneError

POLICY = cpu_policy("frozen", tokens=(1, 8), threads=2, attention="eager")
# Serving compiles in other threads than the one that set the policy.
APPLY = """
import json, sys, threading
from flytune.caches.policy import ServingPolicy
policy = ServingPolicy.from_json(json.loads(sys.argv[1]))
try:
    policy.apply()
except Exception as error:
    print(type(error).__name__, error)
    raise SystemExit
import torch._dynamo.config as dynamo
import torch._inductor.config as inductor

def row():
    return [
        [getattr(config, name) for name in values]
        for config, values in ((inductor, policy.inductor), (dynamo, policy.dynamo))
    ]

seen = []
thread = threading.Thread(target=lambda: seen.append(row()))
thread.start()
thread.join()
assert seen == [row()]
print(json.dumps(seen[0]))
"""


def test_it_reaches_every_thread() -> None:
    printed = run_python(APPLY, json.dumps(POLICY.to_json()))
    assert json.loads(printed.splitlines()[-1]) == [
        [*POLICY.inductor.values()],
        [*POLICY.dynamo.values()],
    ]


@pytest.mark.parametrize("group", ["inductor", "dynamo"])
def test_a_setting_that_torch_lacks(group: str) -> None:
    policy = replace(POLICY, **{group: {"no_such_setting": 1}})
    assert run_python(APPLY, json.dumps(policy.to_json())) == (
        "FlytuneError torch has no setting that the policy names: `no_such_setting`\n"
    )


def test_it_survives_json() -> None:
    assert ServingPolicy.from_json(json.loads(json.dumps(POLICY.to_json()))) == POLICY


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": None}, "malformed"),
        ({"tokens": []}, "no token counts"),
        ({"tokens": ["1"]}, "no token counts"),
        ({"unknown": 1}, "malformed"),
        ({"inductor": []}, "malformed: `inductor`"),
        ({"dynamo": None}, "malformed: `dynamo`"),
        ({"env": {"A": 1}}, "malformed: `env`"),
    ],
)
def test_a_malformed_policy(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FlytuneError, match=said):
        ServingPolicy.from_json(POLICY.to_json() | changes)


def test_an_incomplete_policy() -> None:
    with pytest.raises(FlytuneError, match="malformed: 'tokens'"):
        ServingPolicy.from_json({"name": "unfrozen"})


def test_an_unknown_policy() -> None:
    with pytest.raises(FlytuneError, match="unknown policy: `warm`") as caught:
        cpu_policy("warm", tokens=(1,), threads=1, attention="eager")
    assert caught.value.hint == "known are unfrozen, frozen"


@pytest.mark.parametrize("name", ["unfrozen", "frozen"])
def test_no_variable_is_a_setting_of_torch(name: str) -> None:
    # torch reads those when it is imported, and nothing could set them back when its
    # sources turn out to be others than the bundle's.
    policy = cpu_policy(name, tokens=(1,), threads=3, attention="eager")
    assert policy.env == {"OMP_NUM_THREADS": "3"}


def test_a_frozen_layer_is_an_entry_of_its_own() -> None:
    policy = cpu_policy(
        "frozen", tokens=(1, 8, 64, 128), threads=1, attention="sdpa", layers=80
    )
    assert policy.dynamo["recompile_limit"] >= 4 * 80
    assert policy.dynamo["accumulated_recompile_limit"] >= 2 * 4 * 80


@pytest.mark.parametrize(("sizes", "limit"), [(1, 8), (4, 8), (9, 18), (64, 128)])
def test_every_named_size_fits_under_dynamos_limit(sizes: int, limit: int) -> None:
    tokens = tuple(range(1, sizes + 1))
    policy = cpu_policy("unfrozen", tokens=tokens, threads=1, attention="eager")
    assert policy.dynamo["recompile_limit"] == limit
    assert policy.dynamic is False
    assert policy.dynamo["automatic_dynamic_shapes"] is False


def test_precompiled_entries_are_part_of_the_policy() -> None:
    policy = cpu_policy("unfrozen", tokens=(1, 2, 4), threads=1, attention="eager")
    asked = policy.with_precompiled()
    assert (policy.precompiled, asked.precompiled) == (False, True)
    assert asked.dynamo == {
        **policy.dynamo,
        "recompile_limit": 12,
        "caching_precompile": True,
    }
    assert ServingPolicy.from_json(asked.to_json()) == asked


def test_flydsl_needs_its_architecture_and_its_full_lists() -> None:
    common: dict[str, Any] = {"tokens": (1,), "threads": 1, "attention": "sdpa"}
    policy = rocm_policy(arch="gfx950", **common)
    assert uses_flydsl(policy)
    assert policy.env["FLYDSL_GPU_ARCH"] == "gfx950"
    assert policy.inductor["flydsl_enable_autotuning"] is True
    without = rocm_policy(arch="gfx950", backends=("ATEN", "TRITON"), **common)
    assert not uses_flydsl(without)
    assert without.without_flydsl() is None
    lacking = policy.without_flydsl()
    assert lacking is not None
    assert dict(lacking.inductor) == {
        **without.inductor,
        "flydsl_enable_autotuning": False,
    }
    assert without == cuda_policy(**common)


def test_frozen_graphs_cannot_be_precompiled() -> None:
    policy = cpu_policy("frozen", tokens=(1,), threads=1, attention="eager")
    with pytest.raises(FlytuneError, match="nothing can be precompiled") as caught:
        policy.with_precompiled()
    assert "--precompiled" in (caught.value.hint or "")


def test_one_graph_for_all_sizes() -> None:
    policy = cpu_policy("unfrozen", tokens=(1, 8), threads=2, attention="sdpa")
    dynamic = policy.with_dynamic()
    assert (policy.dynamic, dynamic.dynamic) == (False, True)
    assert dynamic.dynamo["assume_static_by_default"] is False
    assert ServingPolicy.from_json(dynamic.to_json()) == dynamic


def test_a_dynamic_size_is_one_of_its_own() -> None:
    import torch._dynamo.guards
    import torch.fx.experimental._config as config

    static = cpu_policy("unfrozen", tokens=(1, 8), threads=2, attention="sdpa")
    # What a command does with its sizes is its own affair.
    for other in (static, static.for_command()):
        assert "torch._dynamo.guards" not in mends_for(other.to_json())
    for policy in (static.with_dynamic(), static.with_dynamic().with_precompiled()):
        mend = mends_for(policy.to_json())["torch._dynamo.guards"]
        assert config.use_duck_shape
        set_back = mend(torch._dynamo.guards)
        assert not config.use_duck_shape
        set_back()
        assert config.use_duck_shape


def test_each_layer_has_room_in_dynamo() -> None:
    policy = cuda_policy(tokens=(1, 8), threads=2, attention="sdpa")
    apart = policy.with_layers_apart(32)
    assert apart.dynamo["recompile_limit"] == 128
    assert apart.dynamo["accumulated_recompile_limit"] == 256
    assert apart.with_precompiled().dynamo["recompile_limit"] == 128
    assert policy.with_layers_apart(1).dynamo == policy.dynamo
