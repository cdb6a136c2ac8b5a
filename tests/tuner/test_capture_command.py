"""Real commands whose Python processes run real GEMMs, counted from outside."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builds import COMMAND, DATA
from builds import flytune as command
from click.testing import CliRunner

import flytune.shapes
from flytune.shapes.by_hand import read_by_hand
from flytune.tuner.cli import main

# A forward pass, with weights of zeros, of what transformers makes of each config.
MODELS = """
import json, sys, torch, transformers
for path, tokens in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    raw = json.load(open(path))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**raw), dtype=torch.bfloat16)
    model = model.to_empty(device="cpu").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        ids = torch.zeros(1, tokens, dtype=torch.long)
        model(input_ids=ids, use_cache=False)
"""
WIDTH = "import torch; a, b = torch.zeros(3, 8), torch.zeros(8, 5)\n"
SMALL = {"vocab_size": 1024}
# Tokens tell the models apart; a token of the last has two experts.
RUN = {
    "Llama-3.1-8B-Instruct": (16, {"num_hidden_layers": 1, **SMALL}),
    "Qwen3-4B": (20, {"num_hidden_layers": 2, **SMALL}),
    "Mixtral-8x7B": (
        25,
        {"num_hidden_layers": 2, "intermediate_size": 1024, **SMALL},
    ),
}
SAME = ("op", "m", "n", "k", "batch", "groups", "a_dtype", "b_dtype", "layout", "bias")


def capture(
    folder: Path, *command: object
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Run a Python program under capture; return how it ended and what was captured."""
    out = folder / "captured.jsonl"
    done = subprocess.run(
        [*COMMAND, "capture", "--out", out, "--", sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    lines = out.read_text().splitlines() if out.exists() else []
    return done, [json.loads(line) for line in lines]


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[Any, ...]]:
    """How often each GEMM is called, wherever it is."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        counts[tuple(row[name] for name in SAME)] += row["count"]
    return counts


def test_running_models_call_the_derived_gemms(tmp_path: Path) -> None:
    words: list[object] = []
    for name, (tokens, changes) in RUN.items():
        words += [config_of(tmp_path, name, changes), tokens]
    done, rows = capture(tmp_path, "-c", MODELS, *words)
    assert done.returncode == 0, done.stderr
    for config, (tokens, _) in zip(words[::2], RUN.values(), strict=True):
        said = ("shapes", "--model", str(config), "--tokens", str(tokens), "--json")
        derived = [json.loads(line) for line in run(*said).splitlines()]
        # In some releases rotary angles are an outer product, which nobody tunes.
        captured = counted(
            row for row in rows if row["m"] in (tokens, 2 * tokens) and row["k"] > 1
        )
        assert captured == counted(derived), config


def config_of(folder: Path, name: str, changes: Mapping[str, Any]) -> Path:
    """A model's config with some of it changed."""
    (package,) = flytune.shapes.__path__
    folders = (Path(package) / "models", DATA / "configs")
    found = next(path for f in folders if (path := f / f"{name}.json").exists())
    raw = json.loads(found.read_text()) | changes
    if "layer_types" in raw:
        raw["layer_types"] = raw["layer_types"][: raw["num_hidden_layers"]]
    out = folder / f"{name}.json"
    out.write_text(json.dumps(raw))
    return out


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


# Once each, in the main thread and another, in inference mode and within an operator
# of the program's own; twice in a compiled function, once in a compiled module; in a
# forked and a spawned child.
EVERYWHERE = """
import copy, multiprocessing, threading
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
def operators():
    float8 = torch.float8_e4m3fn
    a, b, c = torch.ones(4, 16), torch.ones(16, 32), torch.ones(4, 32)
    by_columns = b.t().contiguous().t()
    torch.addmm(c, a, b)
    torch.bmm(a.expand(3, 4, 16), b.expand(3, 16, 32))
    torch.baddbmm(c.expand(3, 4, 32), a.expand(3, 4, 16), by_columns.expand(3, 16, 32))
    torch.mm(a.t().contiguous().t(), b, out=c)
    one = torch.ones(())
    torch._scaled_mm(
        a.to(float8), by_columns.to(float8), one, one, out_dtype=torch.bfloat16)
def within_others():
    # A tensor that two make up, copies of parameters, and tracing.
    from torch._subclasses import FakeTensorMode
    from torch.testing._internal.two_tensor import TwoTensor
    pair = TwoTensor(torch.zeros(12, 8), torch.zeros(12, 8))
    pair @ torch.zeros(8, 5)
    module = copy.deepcopy(torch.nn.Linear(8, 5, bias=False))
    module(torch.zeros(13, 8))
    with FakeTensorMode():
        work(14)
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
        context = multiprocessing.get_context(way)
        child = context.Process(target=work, args=(7 + number,))
        child.start(); child.join()
        assert child.exitcode == 0
    work(9, times=4)
    torch.zeros(2, 2, dtype=torch.float64) @ torch.zeros(2, 2, dtype=torch.float64)
    with torch.device("meta"):
        work(10)
    operators()
    within_others()
    print("done")
    raise SystemExit(7)
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that ran under capture."""

    folder: Path
    done: subprocess.CompletedProcess[str]
    rows: list[dict[str, Any]]


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("everywhere")
    program = folder / "program.py"
    program.write_text(EVERYWHERE)
    return Ran(folder, *capture(folder, program))


def test_the_command_ends_as_it_would_have(everywhere: Ran) -> None:
    assert (everywhere.done.returncode, everywhere.done.stdout) == (7, "done\n")
    # Only what is said at the end: no program is told of the counting.
    assert [line.partition(":")[0] for line in everywhere.done.stderr.splitlines()] == [
        "captured",
        "set aside",
    ]


def test_wherever_a_gemm_runs_it_is_counted(everywhere: Ran) -> None:
    rows = [row for row in everywhere.rows if row["k"] == 8]
    counts = {row["m"]: row["count"] for row in rows}
    assert counts == {
        **{2: 1, 3: 1, 4: 1, 5: 1, 6: 2, 7: 1, 8: 1, 9: 4, 11: 1},
        **{12: 2, 13: 1},
    }
    assert {(row["op"], row["n"]) for row in rows} == {("mm", 5)}
    layouts = {row["m"]: row["layout"] for row in rows}
    assert (layouts[2], layouts[5]) == ("TN", "NN")
    assert {row["rule"] for row in rows} == {"captured on cpu"}
    assert "captured: 16 GEMMs, 21 calls, 3 processes" in everywhere.done.stderr
    assert "set aside: 1 calls: of float64" in everywhere.done.stderr


def test_each_operator_is_a_gemm_that_is_planned(everywhere: Ran) -> None:
    rows = [row for row in everywhere.rows if row["k"] == 16]
    names = ("op", "m", "n", "k", "batch", "layout", "bias")
    assert {tuple(row[name] for name in names) for row in rows} == {
        ("addmm", 4, 32, 16, 1, "NN", True),
        ("bmm", 4, 32, 16, 3, "NN", False),
        ("bmm", 4, 32, 16, 3, "TN", False),
        ("mm", 4, 32, 16, 1, "NT", False),
        ("scaled_mm", 4, 32, 16, 1, "TN", False),
    }
    (scaled,) = (row for row in rows if row["op"] == "scaled_mm")
    assert (scaled["a_dtype"], scaled["scaling"]) == ("float8_e4m3fn", "tensorwise")
    assert scaled["out_dtype"] == "bfloat16"


def test_what_is_captured_is_read_as_shapes(everywhere: Ran) -> None:
    listed = read_by_hand(everywhere.folder / "captured.jsonl", (1,))
    rows = [shape.to_row() for shape in listed.shapes]
    same = [{name: row[name] for name in SAME} for row in rows]
    assert same == [{name: row[name] for name in SAME} for row in everywhere.rows]
    assert [row["count"] for row in rows] == [row["count"] for row in everywhere.rows]


@pytest.mark.slow
def test_what_is_captured_is_built_and_held(tmp_path: Path) -> None:
    capture(tmp_path, "-c", WIDTH + "torch.mm(a, b); torch.mm(a, b)")
    file, out = tmp_path / "captured.jsonl", tmp_path / "bundle"
    said = ("build", "--shapes", file, "--target", "h200", "--compile-only")
    done = command(tmp_path, *said, "--work", tmp_path / "work", "--out", out)
    assert done.returncode == 0, done.stderr + done.stdout
    held = run("coverage", str(out), "--log", str(file), "--min", "1")
    assert held == "held     1 of 1 GEMMs, 100.0% of 2 calls\n"


def test_a_killed_process_leaves_its_part_and_its_status(tmp_path: Path) -> None:
    die = "import os; os.kill(os.getpid(), 9)"
    done, rows = capture(tmp_path, "-c", WIDTH + "[a @ b for _ in range(5)]\n" + die)
    assert done.returncode == 128 + signal.SIGKILL
    assert [row["count"] for row in rows] == [5]


def test_no_gemm_leaves_no_file(tmp_path: Path) -> None:
    done, rows = capture(tmp_path, "-c", "print(1)")
    assert (done.returncode, done.stdout, rows) == (0, "1\n", [])
    assert done.stderr.startswith("captured: no GEMM, and nothing is written: no ")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_reaches_the_command(tmp_path: Path) -> None:
    code = "print('ready', flush=True); import time; time.sleep(60)"
    out = ("--out", str(tmp_path / "captured.jsonl"))
    with subprocess.Popen(
        [*COMMAND, "capture", *out, sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


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
