"""The ledger on a real accelerator: every kind of work is seen, and then is gone.

Run by `make test-gpu`; needs a CUDA or ROCm device, and no Ray.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

# A program with a choice (the linears) and a fused kernel that is tuned by steps.
SCRIPT = """
import json, sys
import torch
from flytune.caches.ledger import Ledger, summary
from flytune.caches.ledger_hooks import arm

ledger = Ledger()
arm(ledger)
import torch._inductor.config as config
config.max_autotune = True
config.coordinate_descent_tuning = sys.argv[2] == "by_steps"
config.compile_threads = 1
torch.manual_seed(0)
layers = [torch.nn.RMSNorm(1024), torch.nn.Linear(1024, 4096, bias=False)]
layers += [torch.nn.SiLU(), torch.nn.Linear(4096, 1024, bias=False)]
module = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
with torch.no_grad():
    x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
    out = torch.compile(module, dynamic=False)(x)
    want = module(x).float()
    error = (out.float() - want).abs().max() / want.abs().max()
lookups = [f"{k.layer} {k.state}" for k in ledger.lookups]
row = {"work": summary(ledger.events), "lookups": lookups, "error": float(error)}
open(sys.argv[1], "w").write(json.dumps(row))
"""


@pytest.fixture(scope="module")
def by_steps(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two fresh processes did on one cache directory, with coordinate descent."""
    return _runs(tmp_path_factory.mktemp("by_steps"), "by_steps")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The same without coordinate descent."""
    return _runs(tmp_path_factory.mktemp("plain"), "plain")


def _runs(directory: Path, how: str) -> list[dict[str, Any]]:
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(directory / "cache")}
    result = directory / "result.json"
    rows = []
    for _ in range(2):
        command = [sys.executable, "-c", SCRIPT, str(result), how]
        subprocess.run(command, env=env, check=True)
        rows.append(json.loads(result.read_text()))
    return rows


def test_every_kind_of_gpu_work_is_seen_cold(by_steps: list[dict[str, Any]]) -> None:
    work = by_steps[0]["work"]
    for kind in ("lowered", "tuned", "triton_compiled", "coordinate_descent"):
        assert work.get(kind, 0) > 0, (kind, work)


def test_a_hit_that_descends_again_is_seen(by_steps: list[dict[str, Any]]) -> None:
    # torch 2.11 finds no earlier descent of a kernel with a single config: each hit
    # repeats it, and a verification must say so.
    cold, hit = by_steps
    assert set(hit["lookups"]) == {"fx hit", "aot hit"}
    assert "lowered" not in hit["work"]
    assert "tuned" not in hit["work"]
    assert hit["work"]["coordinate_descent"] <= cold["work"]["coordinate_descent"]


def test_a_hit_without_descent_does_nothing(plain: list[dict[str, Any]]) -> None:
    assert plain[0]["work"]["tuned"] > 0
    assert set(plain[1]["lookups"]) == {"fx hit", "aot hit"}
    assert set(plain[1]["work"]) <= {"traced", "listed", "header", "compiler_query"}


def test_outputs_are_those_of_eager(
    by_steps: list[dict[str, Any]], plain: list[dict[str, Any]]
) -> None:
    assert max(row["error"] for row in (*by_steps, *plain)) < 0.03
