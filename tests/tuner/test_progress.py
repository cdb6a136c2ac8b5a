import os
import pty
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from flytune.tuner import progress
from flytune.tuner.progress import Progress

SCRIPT = """
    from flytune.tuner.progress import Progress
    progress = Progress()
    progress.say("plan: three")
    with progress.stage("time", 3) as stage:
        for name in "abc":
            stage.advance(f"kernel {name}")
    with progress.stage("empty", 0):
        pass
    progress.say("done")
"""


def run(**streams: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    return subprocess.run(command, env=env, check=True, timeout=60, **streams)


def test_elsewhere_than_on_a_terminal_lines_are_plain() -> None:
    done = run(capture_output=True)
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert lines[0] == "[00:00] plan: three"
    assert lines[-1] == "[00:00] done"
    pattern = r"\[00:00\] time: 3 of 3, \d+/min, 0 s left, kernel c"
    assert [line for line in lines if "time:" in line] == lines[1:2]
    assert re.fullmatch(pattern, lines[1])
    assert b"\x1b" not in done.stderr


def test_on_a_terminal_there_is_a_bar_and_stdout_stays_empty(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with (tmp_path / "stdout").open("wb") as stdout:
        run(stdout=stdout, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # what Linux says when the other side is closed
        pass
    finally:
        os.close(ours)
    assert (tmp_path / "stdout").read_bytes() == b""
    assert b"\x1b[" in shown
    assert b"time kernel c" in shown
    assert b"3/3" in shown
    assert b"done" in shown


@pytest.mark.parametrize(
    ("seconds", "done", "line"),
    [
        (12.0, 1, "stage: 1 of 4, 5/min, 36 s left"),
        (12.0, 2, "stage: 2 of 4, 10/min, 12 s left"),
        (12.0, 4, "stage: 4 of 4, 20/min, 0 s left"),
    ],
)
def test_line_has_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    done: int,
    line: str,
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with Progress().stage("stage", 4) as stage:
        for _ in range(done - 1):
            stage.advance()
        now = seconds
        stage.advance()
    assert capsys.readouterr().err == f"[00:12] {line}\n"


def test_each_part_ends_where_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Progress()
    assert progress.parts() == []
    for part, seconds in (("plan", 1.5), ("tune", 20.0), ("bake", 3.25)):
        progress.begin(part)
        now[0] += seconds
    assert progress.parts() == [("plan", 1.5), ("tune", 20.0), ("bake", 3.25)]
    assert progress.elapsed_s == 24.75


def test_plain_lines_are_rare_but_for_the_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with Progress().stage("stage", 100) as stage:
        for _ in range(100):
            now += 1.0
            stage.advance()
    lines = capsys.readouterr().err.splitlines()
    assert [re.findall(r"(\d+) of", line)[0] for line in lines] == [
        str(count) for count in range(10, 101, 10)
    ]
