"""GEMMs that run on a GPU, counted from outside."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from builds import COMMAND

pytestmark = pytest.mark.gpu

# The gradient of a weight is worked out in a thread of the device's own.
PROGRAM = """
import torch
kind = {"device": "cuda", "dtype": torch.bfloat16}
a, w = torch.ones(16, 512, **kind), torch.ones(256, 512, **kind)
torch.nn.functional.linear(a, w)
torch.nn.functional.linear(a, w.clone().requires_grad_()).backward(
    torch.ones(16, 256, **kind))
float8, ones = torch.float8_e4m3fn, torch.ones(16, 1, device="cuda")
torch._scaled_mm(
    a.to(float8), w.to(float8).t(), ones, torch.ones(1, 256, device="cuda"),
    out_dtype=torch.bfloat16)
ends = torch.tensor([8, 16], device="cuda", dtype=torch.int32)
torch._grouped_mm(a, torch.stack([w, w]).transpose(1, 2), offs=ends)
"""


def test_gemms_on_a_gpu_are_counted(tmp_path: Path) -> None:
    out = tmp_path / "captured.jsonl"
    said = ("capture", "--out", str(out), "--", sys.executable, "-c", PROGRAM)
    done = subprocess.run(
        [*COMMAND, *said], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    names = ("op", "m", "n", "k", "groups", "a_dtype", "scaling", "count")
    assert {tuple(row[name] for name in names) for row in rows} == {
        ("mm", 16, 256, 512, 0, "bfloat16", None, 2),
        ("mm", 256, 512, 16, 0, "bfloat16", None, 1),
        ("scaled_mm", 16, 256, 512, 0, "float8_e4m3fn", "rowwise", 1),
        ("grouped_mm", 16, 256, 512, 2, "bfloat16", None, 1),
    }
    assert {row["rule"] for row in rows} == {"captured on cuda"}
