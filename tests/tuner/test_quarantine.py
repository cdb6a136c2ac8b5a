import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.quarantine import Quarantine

WRITE = """
import sys
from pathlib import Path
from flytune.caches.columns import Status
from flytune.tuner.candidate import RunResult
from flytune.tuner.quarantine import Quarantine
path, writer, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
quarantine = Quarantine(path, "gpu")
sys.stdin.readline()
for number in range(count):
    name = f"{writer}-{number}"
    quarantine.add([RunResult(name, Status.FAULT, "x" * number * 100)])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quarantine.jsonl"


def fault(name: str, reason: str = "it died") -> RunResult:
    return RunResult(name, Status.FAULT, reason)


def made_of(names: Iterable[str]) -> TuneTask:
    return task([library(), *map(candidate, names)])


def kept_out(quarantine: Quarantine, *names: str) -> dict[str, str]:
    """Why each candidate of a list may not be tried, where it may not."""
    refusals = quarantine.refusals(made_of(names))
    assert {r.status for r in refusals.values()} <= {Status.FAULT}
    assert all(name == result.choice_hash for name, result in refusals.items())
    return {name: result.reason for name, result in refusals.items()}


def test_what_was_never_tried_is_free(path: Path) -> None:
    assert kept_out(Quarantine(path, "gpu"), "a", "b") == {}
    assert not path.exists()


def test_a_later_run_knows_what_an_earlier_one_put_in(path: Path) -> None:
    first = Quarantine(path, "gpu")
    assert first.add([fault("a", "killed\nit \u2028"), fault("b")]) == ("a", "b")
    for quarantine in (first, Quarantine(path, "gpu")):
        assert kept_out(quarantine, "a", "b", "c") == {
            "a": "quarantined: killed\nit \u2028",
            "b": "quarantined: it died",
        }


@pytest.mark.parametrize("status", list(Status))
def test_only_what_may_cost_a_device_is_put_in(path: Path, status: Status) -> None:
    dangerous = status in (Status.FAULT, Status.TIMEOUT)
    added = Quarantine(path, "gpu").add([RunResult("a", status, "why")])
    assert added == (("a",) if dangerous else ())
    assert path.exists() == dangerous


def test_another_device_is_another_matter(path: Path) -> None:
    Quarantine(path, "gpu").add([fault("a")])
    Quarantine(path, "other").add([fault("b")])
    assert list(kept_out(Quarantine(path, "gpu"), "a", "b")) == ["a"]
    assert list(kept_out(Quarantine(path, "other"), "a", "b")) == ["b"]


def test_what_is_in_is_not_put_in_again(path: Path) -> None:
    quarantine = Quarantine(path, "gpu")
    quarantine.add([fault("a")])
    # Its result says that it was not tried, which is no new reason.
    (refused,) = quarantine.refusals(made_of(["a"])).values()
    result = RunResult("a", refused.status, refused.reason)
    for known in (quarantine, Quarantine(path, "gpu")):
        assert known.add([result]) == ()
    assert path.read_text().count("\n") == 1


def test_what_is_excluded_is_kept_out_of_this_run_alone(path: Path) -> None:
    quarantine = Quarantine(path, "gpu", ["a"])
    assert kept_out(quarantine, "a", "b") == {"a": "quarantined: excluded by --exclude"}
    assert quarantine.add([fault("a", "quarantined: excluded by --exclude")]) == ()
    assert kept_out(Quarantine(path, "gpu"), "a") == {}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00\xff{]",
        b"null",
        b"[1]",
        b'"text"',
        b"{}",
        b'{"device": "gpu"}',
        b'{"device": "gpu", "choice_hash": "b"}',
        b'{"device": "gpu", "choice_hash": "b", "rea',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_entry_is_passed_over(path: Path, line: bytes) -> None:
    Quarantine(path, "gpu").add([fault("a")])
    with path.open("ab") as file:
        file.write(line)
    # Torn: no end of line. What comes after it is whole all the same.
    Quarantine(path, "gpu").add([fault("c")])
    with path.open("ab") as file:
        file.write(line + b"\n")
    assert list(kept_out(Quarantine(path, "gpu"), "a", "b", "c")) == ["a", "c"]
    entries = [row for row in path.read_bytes().split(b"\n") if b"it died" in row]
    assert [json.loads(row)["choice_hash"] for row in entries] == ["a", "c"]


def test_no_writer_loses_what_another_writes(path: Path) -> None:
    writers, each = 8, 40
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, str(path), str(writer), str(each)],
            stdin=subprocess.PIPE,
        )
        for writer in range(writers)
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait() for process in running] == [0] * writers
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = {
        f"{writer}-{number}" for writer in range(writers) for number in range(each)
    }
    assert len(rows) == len(names)
    assert {row["choice_hash"] for row in rows} == names
    assert kept_out(Quarantine(path, "gpu"), *names).keys() == names


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path)])
def test_a_file_that_cannot_be_used_is_one_error(
    path: Path, make: Callable[[Path], None]
) -> None:
    quarantine = Quarantine(path, "gpu")
    make(path)
    with pytest.raises(FlytuneError, match=r"^cannot write the quarantine: "):
        quarantine.add([fault("a")])
    with pytest.raises(FlytuneError, match=r"^cannot read the quarantine: ") as caught:
        Quarantine(path, "gpu")
    assert "\n" not in str(caught.value)


def test_a_refusal_stands_for_a_build(path: Path) -> None:
    quarantine = Quarantine(path, "gpu", ["a"])
    reason = "quarantined: excluded by --exclude"
    assert quarantine.refusals(made_of("a")) == {
        "a": BuildResult("a", Status.FAULT, reason)
    }
