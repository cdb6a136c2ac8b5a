"""A real build of a whole model as one graph, with precompiled entries."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from builds import LLAMA, Build, flytune, repacked, run_build, unpacked, verified

from flytune.caches.bundle import Bundle
from flytune.caches.compat import precompiles_inference_mode

# A server that knows nothing of flytune: each of its layers has weights of its own.
SERVE = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
torch.manual_seed(7)
config = LlamaConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
for layer in model.model.layers:
    layer.mlp.up_proj.weight.data.normal_(std=0.1)
ids = torch.arange(4)[None]
with getattr(torch, sys.argv[2])():
    eager = model(input_ids=ids, use_cache=False).logits
    served = torch.compile(model)(input_ids=ids, use_cache=False).logits
from torch._dynamo.utils import counters
error = (served.float() - eager.float()).abs().max() / eager.float().abs().max()
print(json.dumps({
    "error": float(error),
    "frames": counters["frames"]["total"],
    "fx": {k: v for k, v in counters["inductor"].items() if "_cache_" in k},
}))
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("whole")
    arguments = (
        *("build", "--model", str(LLAMA), "--tokens", "4", "--threads", "1"),
        *("--attention", "sdpa", "--bake", "model", "--precompiled"),
        *("--work", str(folder / "work")),
    )
    return run_build(arguments, folder / "bundle", folder / "home")


def served(bundle: Path, home: Path, mode: str = "no_grad") -> dict[str, Any]:
    config = home / "config"
    config.mkdir(parents=True)
    shutil.copy(LLAMA, config / "config.json")
    command = (sys.executable, "-c", SERVE, str(config), mode)
    done = flytune(home, "exec", bundle, "--", *command)
    assert done.returncode == 0, done.stderr
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def test_one_graph_holds_the_model(build: Build) -> None:
    manifest = Bundle.open(build.bundle).manifest
    assert manifest.program["bake"] == "model"
    first, *_, last = manifest.bake["passes"]
    assert (first["lowered"], last) == (1, {})
    assert manifest.bake["settled"]
    # Every projection of every layer was found in the one graph.
    assert (manifest.coverage["missing"], manifest.coverage["unplanned"]) == ({}, [])


def test_the_guards_that_entries_lack_are_named(build: Build) -> None:
    dropped = Bundle.open(build.bundle).manifest.bake["dropped_guards"]
    assert any(guard.startswith("CLASS_MATCH on ") for guard in dropped)
    words = f"which lack {len(dropped)} of Dynamo's guards"
    assert words in build.stdout


def test_nothing_is_traced(build: Build) -> None:
    row = verified(build.bundle, "--strict")
    assert row["ok"], row
    assert (row["work"], row["lookups"]) == ({}, {"dynamo hit": 2})
    assert "traced" not in row["aside"]


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_users_own_model_traces_nothing(
    build: Build, tmp_path: Path, mode: str
) -> None:
    row = served(build.bundle, tmp_path, mode)
    assert row.pop("error") < 0.05
    if mode == "no_grad" or precompiles_inference_mode():
        assert row == {"frames": 0, "fx": {}}
    else:
        assert row == {"frames": 1, "fx": {"fxgraph_cache_hit": 1}}


@pytest.mark.slow
def test_without_an_entry_the_graph_still_hits(build: Build, tmp_path: Path) -> None:
    folder = unpacked(build.bundle, tmp_path / "folder")
    shutil.rmtree(folder / "inductor" / "dynamo")
    changed = repacked(folder, tmp_path / "changed")
    row = verified(changed, "--strict")
    assert not row["ok"]
    assert any("no precompiled entry: LlamaFor" in line for line in row["failures"])
    assert row["work"].keys() == {"traced"}
    plain = served(changed, tmp_path / "serve")
    assert plain.pop("error") < 0.05
    assert plain == {"frames": 1, "fx": {"fxgraph_cache_hit": 1}}
