"""Real builds of decoding and of dynamic graphs, and servers that find them."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builds import LLAMA, Build, flytune, run_build, verified

from flytune.caches.bundle import Bundle

pytestmark = pytest.mark.slow
# A server that knows nothing of flytune: it fills a static cache and decodes from it.
DECODE = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, StaticCache
torch.manual_seed(7)
config = LlamaConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
prompt = torch.arange(8).reshape(2, 4)
def run(step, begun=lambda: None):
    cache, said = StaticCache(config=config, max_cache_len=32), []
    model(input_ids=prompt, cache=cache)
    begun()
    for number in range(3):
        ids = torch.full((2, 1), number)
        said.append(step(input_ids=ids, cache=cache).logits)
    return torch.cat(said, 1)
def compile_layers():
    for at, layer in enumerate(model.model.layers):
        model.model.layers[at] = torch.compile(layer)
with torch.no_grad():
    eager = run(model)
    whole = sys.argv[2] == "whole"
    served = run(torch.compile(model)) if whole else run(model, compile_layers)
"""
# One that meets sizes that nobody baked; a head has 64 elements too.
PREFILL = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
torch.manual_seed(7)
config = LlamaConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
def run():
    prompts = (torch.arange(size)[None] for size in (7, 64, 3))
    return torch.cat(
        [model(input_ids=ids, use_cache=False).logits for ids in prompts], 1
    )
with torch.no_grad():
    eager = run()
    for at, layer in enumerate(model.model.layers):
        model.model.layers[at] = torch.compile(layer)
    served = run()
"""
END = """
from torch._dynamo.utils import counters
error = (served.float() - eager.float()).abs().max() / eager.float().abs().max()
print(json.dumps({
    "error": float(error),
    "fx": {k: v for k, v in counters["inductor"].items() if "_cache_" in k},
}))
"""
Make = Callable[..., Build]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def build(*words: str) -> Build:
        arguments = ("build", "--model", str(LLAMA), "--threads", "1", *words)
        arguments = (*arguments, "--attention", "sdpa", "--work", str(tmp_path / "w"))
        return run_build(arguments, tmp_path / "bundle", tmp_path / "home")

    return build


def serve(build: Build, program: str, *words: str) -> dict[str, Any]:
    home = build.bundle.parent / "serve"
    home.mkdir()
    shutil.copy(LLAMA, home / "config.json")
    command = (sys.executable, "-c", program + END, str(home), *words)
    done = flytune(home, "exec", "--strict", build.bundle, "--", *command)
    assert done.returncode == 0, done.stderr
    row: dict[str, Any] = json.loads(done.stdout)
    return row


@pytest.mark.parametrize("bake", ["layers", "whole"])
def test_a_server_that_decodes_compiles_nothing(make: Make, bake: str) -> None:
    decode = ("--phase", "decode", "--tokens", "2", "--context", "32")
    build = make(*decode, "--bake", bake)
    program = Bundle.open(build.bundle).manifest.program
    assert (program["decode"], program["context"]) == ([2], 32)
    assert verified(build.bundle, "--strict")["ok"]
    row = serve(build, DECODE, bake)
    assert row["error"] < 0.05
    # Each layer writes to its own part of the cache, and is looked up by itself.
    layers = program["config"]["num_hidden_layers"]
    assert row["fx"] == {"fxgraph_cache_hit": 1 if bake == "whole" else layers}


def test_a_dynamic_bundle_serves_other_sizes(make: Make) -> None:
    build = make("--tokens", "1,16,48", "--dynamic")
    row = verified(build.bundle, "--strict")
    assert (row["ok"], row["work"]) == (True, {})
    assert row["aside"]["dynamic"] > 0
    assert "graphs that hit have dynamic sizes" in build.stdout
    served = serve(build, PREFILL)
    assert served["error"] < 0.05
    # One general graph for all layers at three sizes that were never baked.
    assert served["fx"] == {"fxgraph_cache_hit": 1}
