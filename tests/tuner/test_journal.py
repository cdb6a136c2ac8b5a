import json
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from flytune.shapes.errors import FlytuneError
from flytune.tuner.journal import Journal


def entries(path: Path) -> list[dict[str, Any]]:
    with Journal(path) as journal:
        return list(journal.entries("row"))


def write(path: Path, *values: int) -> None:
    with Journal(path) as journal:
        journal.add_all(("row", {"value": value}) for value in values)


def test_entries_come_back_oldest_first_and_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "new" / "journal.jsonl"
    with Journal(path) as journal:
        journal.add_all([("row", {"value": 1}), ("other", {"value": 2})])
        journal.add_all([("row", {"value": 3})])
        assert [e["value"] for e in journal.entries("row")] == [1, 3]
    with Journal(path) as journal:
        assert [e["value"] for e in journal.entries("row")] == [1, 3]
        assert [e["value"] for e in journal.entries("other")] == [2]


def test_what_was_added_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.add_all([("row", {"value": 1})])
        assert json.loads(path.read_bytes()) == {"kind": "row", "value": 1}


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_cut_and_written_over(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, 1, 2)
    path.write_bytes(path.read_bytes()[:-cut])
    assert [e["value"] for e in entries(path)] == [1]
    write(path, 3)
    assert [e["value"] for e in entries(path)] == [1, 3]
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00\xff\xfe\n",
        b"{\n",
        b"\n",
        b"3\n",
        b"null\n",
        b'["kind", "row"]\n',
        b'{"value": 9}\n',
        b'{"kind": "row"}{"kind": "row"}\n',
    ],
)
def test_a_line_that_is_no_entry_costs_only_itself(
    tmp_path: Path, garbage: bytes
) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, 1, 2)
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + garbage + second)
    write(path, 3)
    assert [e["value"] for e in entries(path)] == [1, 2, 3]


@pytest.mark.parametrize("content", [b"", b"{", b"\n"])
def test_a_file_without_entries_is_an_empty_journal(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    assert entries(path) == []


def python(script: str, *arguments: Path, **options: Any) -> str:
    """Run a script in a process of its own and return its output and exit status."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )
    return f"{done.stdout}{done.returncode}"


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    script = """
        import pathlib, sys
        from flytune.shapes.errors import FlytuneError
        from flytune.tuner.journal import Journal
        try:
            Journal(pathlib.Path(sys.argv[1]))
        except FlytuneError as error:
            print(error)
    """
    with Journal(path):
        said = f"another build is using this directory: {tmp_path}"
        assert python(script, path) == f"{said}\n0"
        with pytest.raises(FlytuneError, match=said):
            Journal(path)
    assert entries(path) == []


def test_a_driver_that_died_frees_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    script = """
        import os, pathlib, sys
        from flytune.tuner.journal import Journal
        journal = Journal(pathlib.Path(sys.argv[1]))
        journal.add_all([("row", {"value": 1})])
        os.kill(os.getpid(), 9)
    """
    assert python(script, path) == "-9"
    assert [e["value"] for e in entries(path)] == [1]


def test_a_full_disk_is_one_error_and_loses_no_earlier_entry(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, 1)
    script = """
        import pathlib, signal, sys
        from flytune.shapes.errors import FlytuneError
        from flytune.tuner.journal import Journal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            with Journal(pathlib.Path(sys.argv[1])) as journal:
                journal.add_all([("row", {"value": 2, "long": "x" * 10_000})])
        except FlytuneError as error:
            print(error)
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))

    said = python(script, path, preexec_fn=limit)
    assert said == f"cannot write the journal: {path}: File too large\n0"
    assert [e["value"] for e in entries(path)] == [1]
    assert path.read_bytes().count(b"\n") == 1


def test_a_journal_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FlytuneError, match="cannot write the journal"):
        Journal(tmp_path / "file" / "journal.jsonl")
