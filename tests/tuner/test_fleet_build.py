"""A real fleet: two models whose attention is the same, stopped after the first."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from builds import COMMAND, LLAMA, environment, flytune, strays, verified

from flytune.caches.bundle import Bundle
from flytune.caches.held import records_of
from flytune.caches.records import TuningRecord
from flytune.caches.target import Target
from flytune.tuner.journal import read_entries

FLEET = """
[defaults]
tokens = [1, 8]
threads = 1

[[models]]
model = "{llama}"

[[models]]
model = "{wide}"
"""


def fleet_file(folder: Path) -> Path:
    """Write a fleet of a model and one with other linears, and the same attention."""
    row = json.loads(LLAMA.read_text())
    wide = folder / "tiny-wide.json"
    wide.write_text(json.dumps({**row, "intermediate_size": 640, "vocab_size": 1200}))
    path = folder / "fleet.toml"
    path.write_text(FLEET.format(llama=LLAMA, wide=wide))
    return path


def stop_after(out: Path, home: Path, arguments: tuple[str, ...]) -> tuple[int, str]:
    """Build until a bundle is there; return how it ended and what it said."""
    log = home.parent / "log.txt"
    with (
        log.open("w") as file,
        subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=environment(home),
            start_new_session=True,
            # A shell's background job, which this may be, ignores it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process,
    ):
        while not out.exists():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait()
    return code, log.read_text()


def choices(bundle: Path) -> dict[tuple[str | None, str], TuningRecord]:
    """The records of lists with a choice, by the inputs and the candidate."""
    records = [r for r in records_of(Bundle.open(bundle)) if r.inductor_op == "bmm"]
    return {(r.inputs_key, r.choice_hash): r for r in records}


# Three bakes, one of them stopped, and three bundles that are verified.
@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_what_models_share_is_tuned_once_and_a_stopped_fleet_goes_on(
    tmp_path: Path,
) -> None:
    out, work, home = tmp_path / "out", tmp_path / "work", tmp_path / "home"
    slug = Target.here(threads=1).slug
    llama, wide, both = (
        out / f"{name}.{slug}.tar.zst" for name in ("tiny-llama", "tiny-wide", "fleet")
    )
    words = ("--models", str(fleet_file(tmp_path)), "--out", str(out))
    arguments = ("build", *words, "--work", str(work))
    code, log = stop_after(llama, home, arguments)
    assert (code, strays(home)) == (130, ())
    assert log.endswith("error: stopped: the same command goes on from here\n")
    assert [path.name for path in out.iterdir()] == [llama.name]
    first = "tiny-llama: tune: 2 lists to time, 0 known from earlier work"
    second = "tiny-wide: tune: 0 lists to time, 2 known from earlier work"
    assert first in log
    assert "tiny-wide: tune: 2 lists decided for other models" in log
    assert second in log
    journals = {p.parent.name[:6]: read_entries(p) for p in work.glob("*/journal*")}
    rows = {n: sum(r["kind"] == "record" for r in j) for n, j in journals.items()}
    assert rows == {"tiny-l": 4, "tiny-w": 0}

    before = Bundle.open(llama).digest
    done = flytune(home, *arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"tiny-llama: kept: {llama} is of this build" in done.stderr
    assert second in done.stderr
    assert Bundle.open(llama).digest == before
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:5] for line in lines[1:3]] == [
        ["tiny-llama", "kept", "-", "-", "-"],
        ["tiny-wide", "built", "2", "0", "2"],
    ]
    assert done.stdout.endswith(
        f"of all  {both}, not verified: flytune verify {both}\n"
    )
    times = choices(llama)
    assert len(times) == 4
    assert times.keys() == choices(wide).keys()
    for key, record in choices(wide).items():
        assert (record.samples_us, record.winner) == (
            times[key].samples_us,
            times[key].winner,
        )
    parts = [verified(bundle, "--strict") for bundle in (llama, wide, both)]
    assert [part["failures"] for part in parts] == [[], [], []]
    for name, hits in parts[2]["lookups"].items():
        assert hits == parts[0]["lookups"][name] + parts[1]["lookups"][name]
