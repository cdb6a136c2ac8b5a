"""Real commands whose Python processes run real GEMMs, counted from outside."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from builds import COMMAND, DATA
from click.testing import CliRunner

from flytune.shapes.by_hand import read_by_hand
from flytune.tuner.cli import main

# A forward pass twice, with weights of zeros, of what transformers makes of a config.
MODEL = """
import json, sys, torch, transformers
raw = json.load(open(sys.argv[1]))
with torch.device("meta"):
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**raw), dtype=torch.bfloat16)
model = model.to_empty(device="cpu").eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
    for _ in range(2):
        model(input_ids=torch.zeros(1, 16, dtype=torch.long), use_cache=False)
"""
WIDTH = "import torch; a, b = torch.zeros(3, 8), torch.zeros(8, 5)\n"
SAME = ("op", "m", "n", "k", "batch", "groups", "a_dtype", "b_dtype", "layout", "bias")


def capture(
    folder: Path, code: str, *arguments: object, **env: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Run a program under capture; return what it printed and what was captured."""
    out = folder / "captured.jsonl"
    done = subprocess.run(
        [*COMMAND, "capture", "--out", str(out), "--", sys.executable, "-c", code]
        + list(map(str, arguments)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )
    lines = out.read_text().splitlines() if out.exists() else []
    return done, [json.loads(line) for line in lines]


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[Any, ...]]:
    """How often each GEMM is called, wherever it is."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        counts[tuple(row[name] for name in SAME)] += row["count"]
    return counts


@pytest.mark.parametrize(
    ("name", "layers"), [("Llama-3.1-8B", 1), ("Qwen3-4B", 2), ("Mixtral-8x7B", 1)]
)
def test_a_running_model_calls_the_derived_gemms(
    tmp_path: Path, name: str, layers: int
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(config_of(name, layers)))
    done, rows = capture(tmp_path, MODEL, config, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    said = ("shapes", "--model", str(config), "--tokens", "16", "--json")
    derived = [json.loads(line) for line in run(*said).splitlines()]
    # The rotary angles are an outer product, which compilers make pointwise.
    captured = counted(row for row in rows if row["k"] > 1)
    assert captured == counted(row | {"count": 2 * row["count"]} for row in derived)


def config_of(name: str, layers: int) -> dict[str, Any]:
    """A model's widths, with few layers and a small vocabulary."""
    shipped = {"Llama-3.1-8B": "Llama-3.1-8B-Instruct", "Qwen3-4B": "Qwen3-4B"}
    path = DATA / "configs" / f"{name}.json"
    if name in shipped:
        import flytune.shapes

        (package,) = flytune.shapes.__path__
        path = Path(package) / "models" / f"{shipped[name]}.json"
    raw: dict[str, Any] = json.loads(path.read_text())
    if "layer_types" in raw:
        raw["layer_types"] = raw["layer_types"][:layers]
    return raw | {"num_hidden_layers": layers, "vocab_size": 1024}


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


# Once each, in the main thread and another, in inference mode and within an operator
# of the program's own; twice in a compiled function, once in a compiled module; in a forked and a spawned child.
EVERYWHERE = """
import multiprocessing, os, threading
def work(rows, times=1):
    for _ in range(times):
        torch.nn.functional.linear(torch.zeros(rows, 8), torch.zeros(5, 8))
import torch
@torch.library.custom_op("mine::product", mutates_args=())
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b
@torch.compile(fullgraph=True, mode="max-autotune")
def compiled(a, b):
    return torch.relu(a @ b)
if __name__ == "__main__":
    work(2)
    thread = threading.Thread(target=work, args=(3,))
    thread.start(); thread.join()
    with torch.inference_mode():
        work(4)
    product(torch.zeros(5, 8), torch.zeros(8, 5))
    for _ in range(2):
        compiled(torch.zeros(6, 8), torch.zeros(8, 5))
    module = torch.nn.Linear(8, 5, bias=False)
    module.compile(dynamic=True)
    module(torch.zeros(11, 8))
    for number, way in enumerate(("fork", "spawn")):
        child = multiprocessing.get_context(way).Process(target=work, args=(7 + number,))
        child.start(); child.join()
        assert child.exitcode == 0
    work(9, times=4)
    torch.zeros(2, 2, dtype=torch.float64) @ torch.zeros(2, 2, dtype=torch.float64)
    with torch.device("meta"):
        work(10)
"""


def test_wherever_a_gemm_runs_it_is_counted(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(EVERYWHERE)
    out = tmp_path / "captured.jsonl"
    done = subprocess.run(
        [*COMMAND, "capture", "--out", str(out), "--", sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    counts = {row["m"]: row["count"] for row in rows}
    assert counts == {2: 1, 3: 1, 4: 1, 5: 1, 6: 2, 7: 1, 8: 1, 9: 4, 11: 1}
    assert {(row["op"], row["n"], row["k"]) for row in rows} == {("mm", 5, 8)}
    layouts = {row["m"]: row["layout"] for row in rows}
    assert (layouts[2], layouts[5]) == ("TN", "NN")
    assert {row["rule"] for row in rows} == {"captured on cpu"}
    assert "captured: 9 GEMMs, 13 calls, 3 processes" in done.stderr
    assert "set aside: 1 calls: of float64" in done.stderr


def test_each_operator_as_it_is_planned(tmp_path: Path) -> None:
    code = """
import torch
f = torch.float8_e4m3fn
a, b, c = torch.ones(4, 16), torch.ones(16, 32), torch.ones(4, 32)
torch.addmm(c, a, b)
torch.bmm(a.expand(3, 4, 16), b.expand(3, 16, 32))
torch.baddbmm(c.expand(3, 4, 32), a.expand(3, 4, 16), b.t().contiguous().t().expand(3, 16, 32))
torch.mm(a.t().contiguous().t(), b, out=c)
one = torch.ones(())
torch._scaled_mm(a.to(f), b.t().contiguous().t().to(f), one, one, out_dtype=torch.bfloat16)
"""
    done, rows = capture(tmp_path, code)
    assert done.returncode == 0, done.stderr
    found = {
        tuple(row[name] for name in ("op", "m", "n", "k", "batch", "layout", "bias"))
        for row in rows
    }
    assert found == {
        ("addmm", 4, 32, 16, 1, "NN", True),
        ("bmm", 4, 32, 16, 3, "NN", False),
        ("bmm", 4, 32, 16, 3, "TN", False),
        ("mm", 4, 32, 16, 1, "NT", False),
        ("scaled_mm", 4, 32, 16, 1, "TN", False),
    }
    (scaled,) = (row for row in rows if row["op"] == "scaled_mm")
    assert (scaled["a_dtype"], scaled["scaling"]) == ("float8_e4m3fn", "tensorwise")
    assert scaled["out_dtype"] == "bfloat16"


def test_what_is_captured_can_be_built_from(tmp_path: Path) -> None:
    capture(tmp_path, WIDTH + "torch.mm(a, b); torch.mm(a, b)")
    (shape,) = read_by_hand(tmp_path / "captured.jsonl", (1,)).shapes
    assert (shape.problem, shape.count) == (("mm", 3, 5, 8, 1, 0), 2)
    assert (shape.a_dtype, shape.layout) == ("float32", "NN")
    out = tmp_path / "bundle"
    said = ("build", "--shapes", str(tmp_path / "captured.jsonl"), "--target", "h200")
    more = ("--compile-only", "--threads", "1", "--work", str(tmp_path / "work"))
    done = subprocess.run(
        [*COMMAND, *said, *more, "--backends", "ATEN", "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FLYTUNE_HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    log = ("--log", str(tmp_path / "captured.jsonl"), "--min", "1")
    assert run("coverage", str(out), *log).startswith("held     1 of 1 GEMMs, 100.0% of 2")


def test_a_killed_process_leaves_its_part_and_its_status(tmp_path: Path) -> None:
    die = "import os; os.kill(os.getpid(), 9)"
    done, rows = capture(tmp_path, WIDTH + "[a @ b for _ in range(5)]\n" + die)
    assert done.returncode == 128 + signal.SIGKILL
    assert [row["count"] for row in rows] == [5]


def test_a_failure_is_the_commands_own(tmp_path: Path) -> None:
    done, rows = capture(tmp_path, WIDTH + "a @ b; print(1); raise SystemExit(7)")
    assert (done.returncode, done.stdout, len(rows)) == (7, "1\n", 1)


def test_no_gemm_leaves_no_file(tmp_path: Path) -> None:
    done, rows = capture(tmp_path, "print(1)")
    assert (done.returncode, done.stdout, rows) == (0, "1\n", [])
    assert done.stderr == "captured: no GEMM, and nothing is written\n"
    assert list(tmp_path.iterdir()) == []


def test_a_term_signal_reaches_the_command(tmp_path: Path) -> None:
    code = WIDTH + "a @ b; print('ready', flush=True); import time; time.sleep(60)"
    out = tmp_path / "captured.jsonl"
    with subprocess.Popen(
        [*COMMAND, "capture", "--out", str(out), sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        begun = time.monotonic()
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    assert time.monotonic() - begun < 30
    assert len(out.read_text().splitlines()) == 1


def test_counting_that_fails_is_said_once_and_stops_nothing(tmp_path: Path) -> None:
    spoil = "import shutil, os; shutil.rmtree(os.environ['FLYTUNE_CAPTURE'])\n"
    done, rows = capture(tmp_path, spoil + WIDTH + "a @ b; print((a @ b).shape)")
    assert (done.returncode, done.stdout) == (0, "torch.Size([3, 5])\n")
    assert done.stderr.count("flytune: capture: not all GEMMs are counted") == 1
    assert rows == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--out", "{there}", "true"), "error: output exists: "),
        (("--out", "{new}", "no-such-command"), "error: cannot run: no-such-command"),
        (("--out", "{none}/x", "true"), "error: output cannot be written: "),
        (("--out", "{new}"), "Missing argument"),
    ],
)
def test_what_cannot_be_run(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    there = tmp_path / "there"
    there.write_text("mine")
    names = {"there": there, "new": tmp_path / "new", "none": tmp_path / "none"}
    words = [word.format(**names) for word in arguments]
    result = CliRunner().invoke(main, ["capture", *words])
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert there.read_text() == "mine"
