"""Commands of several ranks: real processes that talk through gloo."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from builds import COMMAND, environment, flytune

from flytune.caches.bundle import Bundle
from flytune.caches.ledger import Lookup
from flytune.caches.ledger_file import ProcessLedger
from flytune.caches.ranks import absent_ranks, ranks_row

# The second rank's part is wider, so that each rank's graph is its own.
PARALLEL = """
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as collectives

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
up, down = torch.randn(32, 24 + 8 * rank), torch.randn(24 + 8 * rank, 32)

def block(x):
    y = torch.relu(torch.bmm(x, up.expand(x.shape[0], -1, -1))) @ down
    return collectives.all_reduce(y, "sum", dist.group.WORLD)

x = torch.ones(4, 8, 32)
with torch.no_grad():
    torch.testing.assert_close(torch.compile(block)(x), block(x), rtol=1e-3, atol=1e-3)
dist.destroy_process_group()
"""


def launched(program: Path, ranks: int) -> list[str]:
    """Return the words that run a program as so many ranks."""
    each = ("--nproc-per-node", str(ranks))
    return [sys.executable, "-m", "torch.distributed.run", *each, str(program)]


@pytest.mark.slow
def test_each_rank_finds_its_part_and_another_launch_does_without(
    tmp_path: Path,
) -> None:
    program, bundle, home = tmp_path / "p.py", tmp_path / "b", tmp_path / "home"
    program.write_text(PARALLEL)
    done = flytune(
        *(home, "build", "--bake-cmd", " ".join(launched(program, 2))),
        *("--threads", "1", "--work", tmp_path / "work", "--out", bundle),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    ranks = {"world_size": 2, "shared": False}
    assert Bundle.open(bundle).manifest.bake["ranks"] == ranks
    # The build's own proof ran both ranks, from another copy of the caches.
    assert "rank 0 of 2, process" in done.stdout
    assert "rank 1 of 2, process" in done.stdout
    done = flytune(home, "exec", bundle, "--", *launched(program, 3))
    assert done.returncode == 0, done.stderr
    said = "flytune: bundle not used: ranks: built for 2, here 3 (FT110)\n"
    assert done.stderr.count(said) == 3


WAITING = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1], str(os.getpid())).touch()
time.sleep(300)
"""


@pytest.mark.slow
def test_ranks_end_with_a_build_that_is_stopped(tmp_path: Path) -> None:
    """torchrun starts each in a session of its own, which no signal to its reaches."""
    program, seen = tmp_path / "p.py", tmp_path / "seen"
    program.write_text(WAITING)
    seen.mkdir()
    words = " ".join([*launched(program, 2), str(seen)])
    build = subprocess.Popen(
        [
            *(*COMMAND, "build", "--bake-cmd", words, "--threads", "1"),
            *("--work", str(tmp_path / "work"), "--out", str(tmp_path / "b")),
        ],
        env=environment(tmp_path / "home"),
    )
    for _ in range(600):
        if len(list(seen.iterdir())) == 2:
            break
        time.sleep(0.1)
    build.send_signal(signal.SIGINT)
    assert build.wait() == 130
    ranks = [int(path.name) for path in seen.iterdir()]
    assert len(ranks) == 2
    assert not [rank for rank in ranks if psutil.pid_exists(rank)]


def process(rank: tuple[int, int] | None, *keys: str) -> ProcessLedger:
    lookups = tuple(Lookup("fx", "hit", key) for key in keys)
    return ProcessLedger(1, 0, ("python",), (), lookups, len(keys), rank)


@pytest.mark.parametrize(
    ("processes", "row", "absent"),
    [
        ([process(None, "a"), process((0, 1), "b")], None, ()),
        (
            [process((0, 2), "a"), process((1, 2), "a"), process(None, "b")],
            {"world_size": 2, "shared": True},
            (),
        ),
        (
            # A rank's graphs may be another process's of the same rank.
            [process((0, 2), "a"), process((0, 2), "b"), process((1, 2), "a")],
            {"world_size": 2, "shared": False},
            (),
        ),
        (
            [process((1, 3), "a"), process((0, 3))],
            {"world_size": 3, "shared": True},
            ("rank 0 of 3", "rank 2 of 3"),
        ),
    ],
)
def test_ranks_of_processes(
    processes: list[ProcessLedger], row: object, absent: tuple[str, ...]
) -> None:
    assert ranks_row(processes) == row
    assert absent_ranks(processes) == absent
