"""The files that say what became of a bundle in a process, from real processes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bundles import elsewhere, installable, python

from flytune.caches.bundle import Bundle
from flytune.caches.hook import flytune_status
from flytune.caches.hook.flytune_status import Status, left_over, name_of, sweep

INSTALL = "import flytune.caches, sys; flytune.caches.install(sys.argv[1])\n"
SHOW = (
    "import os, pathlib\n"
    "for p in sorted(pathlib.Path(os.environ['FLYTUNE_STATUS_DIR']).iterdir()):\n"
    "    print(p.suffix, p.read_text(), end='')\n"
)
# Of the text format: a comment, or a name, labels and a number.
LINE = re.compile(r'# (HELP|TYPE) flytune_\w+ .+|flytune_\w+\{(\w+="[^"\\]*",?)+\} \d+')


@pytest.fixture(autouse=True)
def status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLYTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLYTUNE_STATUS_DIR", str(tmp_path / "status"))
    return tmp_path / "status"


def written(done: subprocess.CompletedProcess[str]) -> tuple[dict[str, Any], str]:
    """The row and the metrics of the one process that said what it saw of its own."""
    row, _, metrics = done.stdout.removeprefix(".json ").partition("\n.prom ")
    return json.loads(row), metrics


def test_a_hit(tmp_path: Path, status: Path) -> None:
    bundle = installable(tmp_path)
    row, metrics = written(python(INSTALL + SHOW, bundle))
    digest = Bundle.open(bundle).digest
    assert (row["state"], row["code"], row["bundle"]) == ("hit", "", digest)
    assert row["directory"].endswith(f"installed/{digest[:16]}")
    assert all(LINE.fullmatch(line) for line in metrics.splitlines())
    assert f'flytune_bundle_hit{{pid="{row["pid"]}"}} 1\n' in metrics
    assert f'bundle="{digest}",state="hit",code=""}} 1\n' in metrics
    # Of a process that ended the row alone is left.
    assert [path.suffix for path in status.iterdir()] == [".json"]


def test_a_miss_names_the_part(tmp_path: Path) -> None:
    bundle = installable(tmp_path, target=elsewhere())
    row, metrics = written(python(INSTALL + SHOW, bundle))
    assert (row["state"], row["code"]) == ("miss", "FT101")
    (part,) = row["parts"]
    assert (part["part"], part["built"]) == ("hardware.isa", ["amx_tile"])
    assert 'flytune_bundle_hit{pid="' in metrics
    assert re.search(r"flytune_bundle_hit\{.*\} 0\n", metrics)
    assert re.search(r'flytune_errors_total\{pid="\d+",code="FT101"\} 1\n', metrics)


def test_none_are_written_where_none_are_wanted(tmp_path: Path) -> None:
    done = python(INSTALL, installable(tmp_path), FLYTUNE_STATUS_DIR="")
    assert (done.stdout, done.stderr) == ("", "")
    assert not (tmp_path / "home" / "status").exists()


def test_the_default_place_is_below_home(tmp_path: Path) -> None:
    env = dict(os.environ)
    del env["FLYTUNE_STATUS_DIR"]
    command = [sys.executable, "-c", INSTALL, str(installable(tmp_path))]
    subprocess.run(command, check=True, env=env)
    assert len(list((tmp_path / "home" / "status").glob("*.json"))) == 1


def test_what_cannot_be_written_makes_no_noise(tmp_path: Path, status: Path) -> None:
    status.write_text("a file is in the way")
    code = INSTALL + "import os; print(os.environ['OMP_NUM_THREADS'])"
    done = python(code, installable(tmp_path))
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_forked_child_has_a_row_of_its_own(tmp_path: Path, status: Path) -> None:
    code = """
import os
from flytune.caches.hook.flytune_status import Status
status = Status(os.environ["FLYTUNE_STATUS_DIR"])
status.write()
child = os.fork()
status.state = "damaged" if child == 0 else "hit"
status.write()
if child:
    os.waitpid(child, 0)
    print(len(list(os.scandir(status.directory))))
"""
    # Two rows, and the metrics of the parent: the child ended.
    assert python(code).stdout == "3\n"
    rows = [json.loads(path.read_text()) for path in status.glob("*.json")]
    assert sorted(row["state"] for row in rows) == ["damaged", "hit"]


def test_what_a_killed_process_left_is_swept(tmp_path: Path, status: Path) -> None:
    bundle = installable(tmp_path)
    code = INSTALL + "import os; os.kill(os.getpid(), 9)"
    command = [sys.executable, "-c", code, str(bundle)]
    killed = subprocess.run(command, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert sorted(p.suffix for p in status.iterdir()) == [".json", ".prom"]
    (torn,) = (path.with_name(f".{path.name}.part") for path in status.glob("*.prom"))
    torn.write_text("torn")
    python(INSTALL, bundle)
    assert [path.suffix for path in status.iterdir()] == [".json", ".json"]


def test_only_the_last_rows_of_the_dead_are_kept(
    status: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flytune_status, "_KEPT_OF_THE_DEAD", 2)
    status.mkdir()
    _, started, here = name_of(os.getpid()).split("-")
    for number in range(4):
        path = status / f"{number + 2**22}-1-{here}.json"
        path.touch()
        os.utime(path, (number, number))
    mine = status / f"{name_of(os.getpid())}.json"
    # Of other containers nobody here knows which processes run.
    other = status / f"{2**22}-{started}-00000000.prom"
    for path in (mine, other, status / "notes.txt"):
        path.touch()
    assert [Path(path).name for path in left_over(str(status))] == [
        f"{2**22}-1-{here}.json",
        f"{1 + 2**22}-1-{here}.json",
    ]
    sweep(str(status))
    assert len(list(status.iterdir())) == 5


def test_the_number_of_a_process_comes_again(status: Path) -> None:
    status.mkdir()
    _, _, here = name_of(os.getpid()).split("-")
    (status / f"{os.getpid()}-1-{here}.prom").touch()
    Status(str(status)).write()
    assert {path.stem for path in status.iterdir()} == {name_of(os.getpid())}


def test_graphs_are_counted_as_they_are_looked_for(tmp_path: Path) -> None:
    code = INSTALL + (
        "import torch, torch._inductor.codecache\n"
        "from torch._dynamo.utils import counters\n"
        "counters['inductor']['fxgraph_cache_hit'] += 2\n"
        "torch.compile(lambda x: x + 1, backend='eager')(torch.ones(3))\n"
        "counters.clear(); torch._dynamo.reset()\n"
        "counters['inductor']['fxgraph_cache_hit'] += 1\n"
        "counters['inductor']['fxgraph_cache_miss'] += 1\n"
        "torch.compile(lambda x: x + 2, backend='eager')(torch.ones(3))\n"
    )
    row, metrics = written(python(code + SHOW, installable(tmp_path)))
    assert row["graphs"] == {"hit": 3, "miss": 1}
    assert re.search(r'flytune_graphs\{pid="\d+",result="hit"\} 3\n', metrics)
