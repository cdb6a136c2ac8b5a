"""What `flytune capture` counts of a running engine, against what is derived.

`test_passes.py` has every family, module by module; this is the way of a user.
Eagerly, so that each is seen; what vLLM fuses, pads and replicates is the engine's own.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from engines import environment, python
from family_variants import SMALL

from flytune.shapes.model_config import parse_config
from flytune.shapes.plan import plan_shapes

pytestmark = pytest.mark.vllm

MAIN = "from flytune.tuner.cli import main; main()"
SERVE = (
    *("--dtype", "bfloat16", "--max-model-len", "512", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "512", "--enforce-eager"),
)
# Attention on a CPU has kernels for heads of these sizes.
BASE = {
    **SMALL,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 2,
}
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "LlamaForCausalLM": ("llama", {}),
    "Qwen2ForCausalLM": ("qwen2", {"tie_word_embeddings": True}),
    "Starcoder2ForCausalLM": ("starcoder2", {}),
}


def captured(folder: Path, model: Path) -> list[dict[str, Any]]:
    """Run an engine's session under capture and return what was captured."""
    out = folder / "captured.jsonl"
    session = (sys.executable, "-m", "flytune.caches.vllm_session", str(model))
    with tempfile.TemporaryDirectory(prefix="host-") as home:
        env = environment(Path(home), "vllm")
        words = ("capture", "--out", str(out), "--", *session, *SERVE)
        python("-c", MAIN, *words, env=env)
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.parametrize("architecture", MODELS)
def test_an_engine_asks_for_the_derived_gemms(
    architecture: str, tmp_path: Path
) -> None:
    kind, more = MODELS[architecture]
    config = {**BASE, "architectures": [architecture], "model_type": kind, **more}
    folder = tmp_path / "model"
    folder.mkdir()
    text = json.dumps({**config, "torch_dtype": "bfloat16"})
    (folder / "config.json").write_text(text)
    rows = captured(tmp_path, folder)
    model = parse_config(text, name=kind, source=str(folder))
    derived = plan_shapes(model, tp=1, engine="vllm", tokens=(1,))
    ran = {(row["n"], row["k"], row["bias"]) for row in rows}
    assert ran == {(shape.n, shape.k, shape.bias) for shape in derived}
    assert {row["engine"] for row in rows} == {"vllm"}
    # The head is asked for the last token of each sequence alone.
    largest = max(row["m"] for row in rows)
    counts: Counter[tuple[int, int]] = Counter()
    for row in rows:
        if row["m"] == largest:
            counts[row["n"], row["k"]] += row["count"]
    layers: Counter[tuple[int, int]] = Counter()
    for shape in derived:
        if shape.module != "lm_head":
            layers[shape.n, shape.k] += shape.count
    passes = {counts[size] / layers[size] for size in layers}
    assert len(passes) == 1, (counts, layers)
    assert passes.pop() >= 1
