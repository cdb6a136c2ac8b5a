"""Any command, built for and proved: real programs of several processes."""

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builds import flytune

from flytune.caches.bundle import Bundle
from flytune.caches.command import command_environment
from flytune.caches.policy import cpu_policy
from flytune.caches.records import read_records
from flytune.shapes.errors import FlytuneError
from flytune.tuner.command_probe import _software, read_lists
from flytune.tuner.command_stages import command_name

# Its linear and its product of matrices are one list each; the second process asks for
# the same graph, and one of another size.
SERVE = """
import multiprocessing, sys, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(32, 48)

    def forward(self, x):
        y = self.up(x)
        return torch.bmm(y, y.transpose(1, 2))

def serve(*sizes):
    with torch.no_grad():
        for size in sizes:
            net = torch.compile(Net().eval(), dynamic=False)
            print(net(torch.randn(4, size, 32)).shape, flush=True)

def main():
    serve(8)
    spawned = multiprocessing.get_context("spawn").Process(target=serve, args=(8, 12))
    spawned.start()
    spawned.join()
    sys.exit(spawned.exitcode)

if __name__ == "__main__":
    main()
"""
# torch is imported by the application's own module, which pickle names then.
OTHER = "import app\napp.serve(12)\n"


@dataclass(frozen=True, slots=True)
class Served:
    """A folder with programs, and a bundle that was baked by one of them."""

    folder: Path
    bundle: Path
    log: str

    def verify(self, *words: str) -> tuple[int, Any, str]:
        """Return the exit code of `verify B -- WORDS`, its row and what it said."""
        home, before = self.folder / "home", ("verify", self.bundle, "--json")
        done = flytune(home, *before, *(("--", *words) if words else ()))
        row = json.loads(done.stdout) if done.stdout else None
        return done.returncode, row, done.stderr


def program(folder: Path, name: str, text: str) -> tuple[str, str]:
    """Write a program and return the words that run it."""
    path = folder / name
    path.write_text(text)
    return sys.executable, str(path)


def build(folder: Path, words: Sequence[str], *options: str) -> Any:
    """Build for a command."""
    return flytune(
        folder / "home",
        *("build", "--bake-cmd", " ".join(words), "--threads", "1"),
        *("--work", folder / "work", "--out", folder / "b", *options),
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("served")
    done = build(folder, program(folder, "app.py", SERVE))
    assert done.returncode == 0, done.stderr + done.stdout
    return Served(folder, folder / "b", done.stderr)


def test_all_processes_of_a_command_are_listed_tuned_and_baked(served: Served) -> None:
    manifest = Bundle.open(served.bundle).manifest
    assert manifest.program["kind"] == "command"
    assert manifest.model["name"] == "app"
    assert manifest.bake["settled"]
    assert manifest.verify["ok"]
    sizes = {row["shape"] for row in manifest.winners if row["op"] == "bmm"}
    assert {re.sub(r"[^0-9,]", "", size) for size in sizes} >= {"48,8,48", "412,12,48"}
    records = read_records(served.bundle / "records.parquet")
    assert {(r.backend, r.status) for r in records if r.op == "bmm"} == {
        ("aten", "ok"),
        ("cpp", "ok"),
    }
    assert "not planned" not in served.log


@pytest.mark.slow
def test_a_bundle_is_proved_by_the_command_that_baked_it(served: Served) -> None:
    code, row, _ = served.verify()
    assert (code, row["ok"], row["work"]) == (0, True, {})
    assert [one["graphs"] for one in row["processes"]] == [1, 2]


def test_another_program_that_asks_for_the_same_hits(served: Served) -> None:
    words = program(served.folder, "other.py", OTHER)
    code, row, said = served.verify(*words)
    assert (code, row["failures"]) == (0, [])
    assert row["processes"][0]["lookups"] == {"aot hit": 1, "fx hit": 1}
    # What the command prints is not the verdict's.
    assert "torch.Size([4, 12, 12])" in said


def test_a_miss_names_the_process_and_what_differs(served: Served) -> None:
    words = program(served.folder, "wide.py", OTHER.replace("12", "20"))
    code, row, _ = served.verify(*words)
    assert code == 1
    missed = [line for line in row["failures"] if "graph missed: " in line]
    assert len(missed) == 1
    assert missed[0].startswith(f"process {row['processes'][0]['pid']} (")
    assert "(4, 20, 32)" in re.sub(r"torch.Size\(\[(.*?)\]\)", r"(\1)", missed[0])
    assert row["work"]["lowered"] == 1


def test_a_command_that_compiles_nothing_proves_nothing(served: Served) -> None:
    code, row, _ = served.verify(sys.executable, "-c", "import torch")
    assert code == 1
    assert row["failures"] == [
        "no compiled graph ran: the command compiles nothing, or its Python began with "
        "-S, -I or -E"
    ]


@pytest.mark.parametrize(
    ("words", "failure"),
    [
        (("sh", "-c", "exit 3"), "the command failed with exit 3"),
        (("sh", "-c", "kill -9 $$"), "the command failed with exit 137"),
    ],
)
def test_a_command_that_fails_is_a_miss(
    served: Served, words: tuple[str, ...], failure: str
) -> None:
    code, row, _ = served.verify(*words)
    assert (code, row["failures"][0]) == (1, failure)


@pytest.mark.slow
def test_a_process_that_dies_leaves_its_part(served: Served) -> None:
    text = OTHER + "import os\nos.kill(os.getpid(), 9)\n"
    code, row, _ = served.verify(*program(served.folder, "dies.py", text))
    assert (code, row["failures"]) == (1, ["the command failed with exit 137"])
    assert row["processes"][0]["graphs"] == 1


def test_what_a_process_without_a_ledger_compiles_is_found(served: Served) -> None:
    unseen = "import torch\ntorch.compile(lambda x: x.sin() + 1)(torch.ones(4))\n"
    started = f"subprocess.run([sys.executable, '-I', '-c', {unseen!r}])"
    code = f"{OTHER}import subprocess, sys\n{started}\n"
    words = program(served.folder, "hidden.py", code)
    code_, row, _ = served.verify(*words)
    assert code_ == 1
    (failure,) = row["failures"]
    assert failure.startswith("files were written: ")


def test_no_such_command(served: Served) -> None:
    code, row, said = served.verify("no-such-command")
    assert (code, row) == (1, None)
    assert said == "error: cannot run: no-such-command: no such command\n"


def test_a_command_that_cannot_be_baked_leaves_nothing(tmp_path: Path) -> None:
    fails = program(tmp_path, "fails.py", "print('first')\nraise SystemExit('why')\n")
    done = build(tmp_path, fails)
    assert done.returncode == 1
    assert "error: the command failed with exit 1: first | why\n" in done.stderr
    done = build(tmp_path, program(tmp_path, "idle.py", "import torch\n"))
    assert done.returncode == 1
    assert "error: the command compiles nothing with Inductor" in done.stderr
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--precompiled",), "--precompiled does not go with --bake-cmd"),
        (("--runner", f"recorded:{__file__}"), "--runner does not go with --bake-cmd"),
        (("--tp", "2"), "--tp is of --model: --bake-cmd says it"),
        (("--tokens", "4"), "--tokens is of --model: --bake-cmd says it"),
        (("--bake", "whole"), "--bake does not go with --bake-cmd"),
    ],
)
def test_options_of_our_own_program(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    done: subprocess.CompletedProcess[str] = build(tmp_path, ["python"], *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_words_of_a_command(tmp_path: Path) -> None:
    done = build(tmp_path, ["'python"])
    assert done.returncode == 2
    assert "no closing quotation: `'python`" in done.stderr


def test_lists_of_another_python_or_torch_are_refused(tmp_path: Path) -> None:
    keys = ("Python 3.9 and torch 2.0", "key", None, {})
    (tmp_path / "1-1.lists").write_bytes(pickle.dumps(keys))
    with pytest.raises(FlytuneError, match=r"runs on Python 3\.9 and torch 2\.0, and"):
        read_lists(tmp_path)
    (tmp_path / "2-2.lists").write_bytes(pickle.dumps(("others", *keys[1:])))
    with pytest.raises(FlytuneError, match="run on different software"):
        read_lists(tmp_path)


def test_lists_of_a_process_that_was_killed_as_it_began(tmp_path: Path) -> None:
    (tmp_path / "1-1.lists").touch()
    (tmp_path / "2-2.lists").write_bytes(pickle.dumps((_software(), "k", None, {}))[:9])
    with pytest.raises(FlytuneError, match="compiles nothing with Inductor"):
        read_lists(tmp_path)
    own = pickle.dumps((_software(), "key", None, {"hash": "h"}))
    (tmp_path / "3-3.lists").write_bytes(own)
    assert read_lists(tmp_path).torch_key == "key"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("python", "tools/serve.py", "--x"), "serve"),
        (("python3.11", "-m", "server"), "python3.11"),
        (("/opt/bin/Qwen2.5",), "Qwen2.5"),
    ],
)
def test_the_name_of_a_command(words: tuple[str, ...], name: str) -> None:
    assert command_name(words) == name


@pytest.mark.parametrize("value", ["0", "1", None])
def test_whether_a_command_may_fetch_is_left_as_it_is(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if value is not None:
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
    policy = cpu_policy("unfrozen", tokens=(1,), threads=1, attention="sdpa")
    env = command_environment(policy.for_command(), tmp_path)
    assert env.get("HF_HUB_OFFLINE") == value
