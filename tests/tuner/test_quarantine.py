import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.quarantine import Quarantine, was_refused

WRITE = """
import pickle, sys
from pathlib import Path
from flytune.caches.columns import Status
from flytune.tuner.candidate import RunResult
from flytune.tuner.quarantine import Quarantine
path, call = map(Path, sys.argv[1:3])
task, names = pickle.loads(call.read_bytes())
quarantine = Quarantine(path, "gpu")
sys.stdin.readline()
for number, name in enumerate(names):
    reason = "x" * number * 100
    quarantine.add(task, [RunResult(name, Status.FAULT, reason, cost_the_process=True)])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quarantine.jsonl"


def fault(name: str, reason: str = "it died", *, cost: bool = True) -> RunResult:
    return RunResult(name, Status.FAULT, reason, cost_the_process=cost)


def made_of(names: Iterable[str], m: int = 16) -> TuneTask:
    """A list of its own for each `m`."""
    return task([library(), *map(candidate, names)], m=m)


ABC = made_of("abc")


def kept_out(quarantine: Quarantine, of: TuneTask = ABC) -> dict[str, str]:
    """Why each candidate of a list may not be tried, where it may not."""
    refusals = quarantine.refusals(of)
    assert {r.status for r in refusals.values()} <= {Status.FAULT}
    assert all(name == result.choice_hash for name, result in refusals.items())
    assert all(was_refused(result.reason) for result in refusals.values())
    return {name: result.reason for name, result in refusals.items()}


def test_what_was_never_tried_is_free(path: Path) -> None:
    assert kept_out(Quarantine(path, "gpu")) == {}
    assert not path.exists()


def test_a_later_run_knows_what_an_earlier_one_put_in(path: Path) -> None:
    first = Quarantine(path, "gpu")
    results = [fault("a", "killed\nit \u2028"), fault("b")]
    assert first.add(ABC, results) == ("a", "b")
    for quarantine in (first, Quarantine(path, "gpu")):
        assert kept_out(quarantine) == {
            "a": f"quarantined in {path}: killed\nit \u2028",
            "b": f"quarantined in {path}: it died",
        }


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("cost", [False, True])
def test_only_what_has_cost_the_process_is_put_in(
    path: Path, status: Status, cost: bool
) -> None:
    result = RunResult("a", status, "why", cost_the_process=cost)
    added = Quarantine(path, "gpu").add(ABC, [result])
    assert added == (("a",) if cost else ())
    assert path.exists() == cost


def test_the_library_is_always_tried(path: Path) -> None:
    assert Quarantine(path, "gpu").add(ABC, [fault("library"), fault("a")]) == ("a",)
    assert list(kept_out(Quarantine(path, "gpu"))) == ["a"]


def test_another_device_or_list_is_another_matter(path: Path) -> None:
    Quarantine(path, "gpu").add(ABC, [fault("a")])
    Quarantine(path, "other").add(ABC, [fault("b")])
    assert list(kept_out(Quarantine(path, "gpu"))) == ["a"]
    assert list(kept_out(Quarantine(path, "other"))) == ["b"]
    assert kept_out(Quarantine(path, "gpu"), made_of("abc", m=32)) == {}


def test_what_is_in_is_not_put_in_again(path: Path) -> None:
    quarantine = Quarantine(path, "gpu")
    quarantine.add(ABC, [fault("a")])
    for known in (quarantine, Quarantine(path, "gpu")):
        assert known.add(ABC, [fault("a", "once more")]) == ()
    assert path.read_text().count("\n") == 1


def test_what_is_excluded_is_kept_out_of_this_run_alone(path: Path) -> None:
    quarantine = Quarantine(path, "gpu", ["a"])
    assert kept_out(quarantine) == {"a": "excluded by --exclude"}
    # Whatever the list.
    assert list(kept_out(quarantine, made_of("abc", m=32))) == ["a"]
    assert kept_out(Quarantine(path, "gpu")) == {}
    assert not path.exists()
    # What is both says what was asked for.
    Quarantine(path, "gpu").add(ABC, [fault("a")])
    assert kept_out(Quarantine(path, "gpu", ["a"])) == {"a": "excluded by --exclude"}


@pytest.mark.parametrize(
    ("reason", "refused"),
    [
        (None, False),
        ("", False),
        ("the device's process died", False),
        ("excluded by --exclude", True),
        ("quarantined in /x/quarantine.jsonl: it died", True),
    ],
)
def test_a_record_tells_that_its_candidate_was_not_tried(
    reason: str | None, refused: bool
) -> None:
    assert was_refused(reason) is refused


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
        b'{"device": "gpu", "choice_hash": "b", "reason": "of no list"}',
        b'{"device": "gpu", "inputs_key": "16,64,128", "choice_hash": "b"}',
        b'{"device": "gpu", "inputs_key": "16,64,128", "choice_hash": "b", "rea',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_entry_is_passed_over(path: Path, line: bytes) -> None:
    Quarantine(path, "gpu").add(ABC, [fault("a")])
    with path.open("ab") as file:
        file.write(line)
    # Torn: no end of line. What comes after it is whole all the same.
    Quarantine(path, "gpu").add(ABC, [fault("c")])
    with path.open("ab") as file:
        file.write(line + b"\n")
    assert list(kept_out(Quarantine(path, "gpu"))) == ["a", "c"]
    entries = [row for row in path.read_bytes().split(b"\n") if b"it died" in row]
    assert [json.loads(row)["choice_hash"] for row in entries] == ["a", "c"]


def test_no_writer_loses_what_another_writes(path: Path, tmp_path: Path) -> None:
    writers, each = 8, 40
    numbers = itertools.product(range(writers), range(each))
    names = [f"{writer}-{number}" for writer, number in numbers]
    made = made_of(names)
    running = []
    for writer in range(writers):
        call = tmp_path / f"call-{writer}"
        call.write_bytes(pickle.dumps((made, names[writer * each :][:each])))
        command = [sys.executable, "-c", WRITE, str(path), str(call)]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE))
    for process in running:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait() for process in running] == [0] * writers
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(row["choice_hash"] for row in rows) == sorted(names)
    assert kept_out(Quarantine(path, "gpu"), made).keys() == set(names)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path)])
def test_a_file_that_cannot_be_used_is_one_error(
    path: Path, make: Callable[[Path], None]
) -> None:
    quarantine = Quarantine(path, "gpu")
    make(path)
    with pytest.raises(FlytuneError, match=r"^cannot write the quarantine: "):
        quarantine.add(ABC, [fault("a")])
    with pytest.raises(FlytuneError, match=r"^cannot read the quarantine: ") as caught:
        Quarantine(path, "gpu")
    assert "\n" not in str(caught.value)


def test_a_refusal_stands_for_a_build(path: Path) -> None:
    expected = BuildResult("a", Status.FAULT, "excluded by --exclude")
    assert Quarantine(path, "gpu", ["a"]).refusals(ABC) == {"a": expected}
