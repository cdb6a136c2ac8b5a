"""Ledgers of processes that fork, die or have no room for them."""

import os
import resource
import signal
from pathlib import Path

from flytune.caches.ledger import Event, Kind, Lookup
from flytune.caches.ledger_file import FileLedger, joined, read_ledgers


def in_child(work: object, *args: object) -> int:
    """Run a function in a forked process; return how that ended."""
    pid = os.fork()
    if pid == 0:
        try:
            work(*args)  # type: ignore[operator]
        except BaseException:  # it must not go on with the tests
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    ledger.add(Event(Kind.TUNED, "mm", 1.5, ("a", "b")))
    ledger.add_lookup(Lookup("fx", "miss", "key", {"part": "hash value"}))
    ledger.add_graph()
    (process,) = read_ledgers(tmp_path)
    assert process.pid == os.getpid()
    assert process.events == (Event(Kind.TUNED, "mm", 1.5, ("a", "b")),)
    assert process.lookups[0].parts == {"part": "hash value"}
    assert process.graphs == 1
    assert joined([process, process])["graphs"] == 2


def test_a_forked_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    ledger.add_graph()
    assert in_child(ledger.add, Event(Kind.LOWERED, "child")) == 0
    ledger.add_graph()
    parent, child = read_ledgers(tmp_path)
    assert (parent.graphs, parent.events) == (2, ())
    assert (child.graphs, child.parent) == (0, os.getpid())


def killed(ledger: FileLedger) -> None:
    ledger.add(Event(Kind.LOWERED, "graph"))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_leaves_its_part(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    assert in_child(killed, ledger) == -signal.SIGKILL
    (process,) = read_ledgers(tmp_path)
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("a") as file:
        file.write('["event", ["low')
    assert [event.what for event in process.events] == ["graph"]
    assert read_ledgers(tmp_path) == (process,)


def crowded(ledger: FileLedger) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
    for number in range(20):
        ledger.add(Event(Kind.LOWERED, f"graph {number}"))
    assert number == 19, "the program goes on"


def test_a_ledger_without_room_proves_nothing(tmp_path: Path) -> None:
    assert in_child(crowded, FileLedger(tmp_path)) == 0
    (process,) = read_ledgers(tmp_path)
    assert process.events[-1].kind is Kind.UNSEEN
    assert 0 < len(process.events) < 20


def without_descriptors(ledger: FileLedger) -> None:
    spare = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, spare))
    ledger.add_graph()


def test_a_process_that_could_not_begin_its_ledger_proves_nothing(
    tmp_path: Path,
) -> None:
    assert in_child(without_descriptors, FileLedger(tmp_path)) == 0
    (process,) = read_ledgers(tmp_path)
    assert [event.kind for event in process.events] == [Kind.UNSEEN]


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    ledger.note(lambda: Event(Kind.LOWERED, str(1 // 0)))
    ledger.note(lambda: Lookup("fx", "hit", "key"))
    (process,) = read_ledgers(tmp_path)
    (event,) = process.events
    assert (event.kind, event.what) == (
        Kind.UNSEEN,
        "ZeroDivisionError: integer division or modulo by zero",
    )
    assert process.lookups[0].state == "hit"
