"""A bundle for hosts with FlyDSL and without: baked, verified and served both ways.

The program is a CPU's, to which Inductor never offers FlyDSL: what is shown is that two
policies are baked into one directory, and that what a host lacks picks one of them.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from builds import (
    FLYDSL_HIDDEN,
    LLAMA,
    Build,
    arguments_of,
    flytune,
    run_build,
    verified,
)

from flytune.caches.bundle import Bundle

pytestmark = pytest.mark.slow

# Also asks for FlyDSL, as the policy of an AMD GPU does.
ASKS = """
from dataclasses import replace
from flytune.tuner import plan_program
from flytune.tuner.cli import main

cpu_policy = plan_program.cpu_policy

def asking(*args, **kwargs):
    policy = cpu_policy(*args, **kwargs)
    more = {"max_autotune_gemm_backends": "ATEN,CPP,FLYDSL"}
    return replace(policy, inductor={**policy.inductor, **more})

plan_program.cpu_policy = asking
main()
"""
# A server that knows only what its program is.
SERVE = """
import json, sys
import torch
from flytune.caches.bundle import Bundle
from flytune.caches.program import ProgramSpec, build_program
from torch._dynamo.utils import counters
import torch._inductor.config as inductor
spec = ProgramSpec.from_json(Bundle.open(sys.argv[1]).manifest.program)
with torch.no_grad():
    for piece in build_program(spec, seed=77):
        arguments, named = piece.inputs(4, 5)
        torch.compile(piece.module)(*arguments, **named)
fx = {k: v for k, v in counters["inductor"].items() if "_cache_" in k}
print(json.dumps([inductor.max_autotune_gemm_backends, fx]))
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("variants")
    command = (sys.executable, "-c", ASKS)
    arguments = arguments_of(LLAMA, "4", "unfrozen", folder / "work")
    return run_build(arguments, folder / "bundle", folder / "home", command)


def served(bundle: Path, home: Path, code: str) -> tuple[Any, list[str]]:
    command = (sys.executable, "-c", code, bundle)
    done = flytune(home, "exec", bundle, "--", *command)
    assert done.returncode == 0, done.stderr
    said = [li for li in done.stderr.splitlines() if li.startswith("flytune: ")]
    return json.loads(done.stdout), said


def test_both_policies_are_baked_and_verified(build: Build) -> None:
    manifest = Bundle.open(build.bundle).manifest
    # The decoder layer and the head, under each of the two.
    assert manifest.bake["passes"][0]["lowered"] == 4
    assert manifest.bake["settled"]
    row = verified(build.bundle, "--strict")
    assert row["ok"], row
    assert row["work"] == {}
    assert {name for name in row["lookups"]} == {"aot hit", "fx hit"}


def test_a_host_with_flydsl_serves_the_first(build: Build, tmp_path: Path) -> None:
    (backends, fx), said = served(build.bundle, tmp_path, SERVE)
    assert (backends, fx) == ("ATEN,CPP,FLYDSL", {"fxgraph_cache_hit": 2})
    assert said == []


def test_a_host_without_it_serves_the_other(build: Build, tmp_path: Path) -> None:
    (backends, fx), said = served(build.bundle, tmp_path, FLYDSL_HIDDEN + SERVE)
    assert (backends, fx) == ("ATEN,CPP", {"fxgraph_cache_hit": 2})
    (line,) = said
    assert line.startswith("flytune: served without FlyDSL: built for `0.3.")
    assert line.endswith(", here `absent` (FT108)")
