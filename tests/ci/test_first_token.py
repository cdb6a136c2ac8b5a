"""The benchmark of a first token: what it counts, and that it runs at all."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from builds import LLAMA

from flytune.caches.program import ProgramSpec, build_program

SCRIPT = Path(__file__).parents[2] / "ci" / "bench" / "first_token.py"


def row(module: ModuleType, vehicle: str, seconds: float, **work: int) -> Any:
    result = {
        "ready_s": 0.5,
        "first_token_s": seconds - 0.5,
        "second_s": 0.01,
        "rel_error": seconds / 1000,
        "work": work,
        "saved_bytes": 9 if vehicle == "cold" else 0,
    }
    return {"how": "whole", "vehicle": vehicle, **module.row_of(result)}


def test_the_figures(bench: Callable[[str], ModuleType]) -> None:
    module = bench("first_token")
    cold = {"lowered": 2, "tuned": 3, "cpp_compiled": 4, "triton_compiled": 5}
    rows = [
        row(module, "cold", 40.0, **cold),
        row(module, "bundle", 3.0, traced=1),
        *(row(module, "megacache", s, cpp_compiled=1) for s in (4.0, 8.0, 5.0)),
        *(row(module, "bundle", s, traced=1) for s in (2.0, 2.5, 1.0)),
        *(row(module, "eager", s) for s in (0.5, 0.5, 0.5)),
    ]
    figures = module.figures_of(rows)
    assert (figures["bundle_first_s"], figures["bundle_s"]) == (3.0, 2.0)
    assert (figures["cold_over_bundle"], figures["megacache_over_bundle"]) == (20, 2.5)
    nothing = {"lowered": 0, "tuned": 0, "compiled": 0}
    assert figures["bundle_work"] == {**nothing, "traced": 1}
    work = {"lowered": 2, "tuned": 3, "compiled": 9, "traced": 0}
    assert figures["cold_work"] == work
    assert (figures["megacache_bytes"], figures["worst_error"]) == (9, 0.04)
    whole = {"model": "A", "depth": None, "prompt": 64, "layers": figures}
    result = {"figures": {**whole, "whole": figures}}
    text = bench("tables").TABLES["first_token"](result)
    assert text.startswith("The first token of A, all layers, after it is loaded, ")
    seconds = "40.0 s (20.0x) | 5.0 s (2.5x) | 2.00 s"
    work = "0 tuned, 0 compiled, 0 lowered"
    assert f"| layer by layer | {seconds} | {work} | 3.00 s | 0.50 s |" in text


@pytest.mark.parametrize("bake", ["layers", "model"])
def test_the_model_is_compiled_and_then_as_it_was(
    bench: Callable[[str], ModuleType], bake: str
) -> None:
    import torch

    module = bench("serve_token")
    config = {**json.loads(LLAMA.read_text()), "num_hidden_layers": 3}
    (piece,) = build_program(ProgramSpec(config, "sdpa", bake="model"), seed=1)
    model, (_, named) = piece.module, piece.inputs(4, 1)
    before = list(model.modules())
    frames: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        frames.append(graph)
        return graph

    compile_ = torch.compile
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        eager = model(**named).logits
        patch.setattr(torch, "compile", lambda m, **o: compile_(m, backend=backend))
        step, undo = module.compiled(model, bake)
        assert torch.equal(step(**named).logits, eager)
        undo()
    # All layers share one graph; the head has another.
    assert len(frames) == (2 if bake == "layers" else 1)
    assert list(model.modules()) == before
    torch._dynamo.reset()


@pytest.mark.slow
def test_it_runs_on_a_cpu_to_its_end(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--prompt", "4"]
    command += [
        "--bake",
        "layers",
        "--model",
        str(LLAMA),
        "--rounds",
        "1",
        "--work",
        str(tmp_path / "w"),
    ]
    command += ["--state", str(tmp_path / "state.json"), "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    units = json.loads((tmp_path / "state.json").read_text())["units"]
    (result,) = tmp_path.glob("first_token.cpu-*.json")
    figures = json.loads(result.read_text())["figures"]
    work = {"lowered": 0, "tuned": 0, "compiled": 0}
    assert figures["layers"]["bundle_work"].items() >= work.items()
    assert figures["layers"]["cold_work"]["compiled"] > 0
    assert figures["layers"]["worst_error"] < 0.05
    assert units["build layers"]["result"]["verified"]
    rounds = [units[f"bundle layers {number}"]["result"] for number in (0, 1)]
    assert [row["compiled"] for row in rounds] == [0, 0]
