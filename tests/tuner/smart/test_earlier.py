import json
from collections.abc import Iterable
from pathlib import Path

from fakes import library
from long_lists import H200, Device, long_list

from flytune.caches.records import TuningRecord
from flytune.tuner.journal import Journal
from flytune.tuner.recall import Recall
from flytune.tuner.smart.earlier import earlier_builds, measured
from flytune.tuner.smart.waves import SmartSearch


def build(folder: Path, device: str) -> set[str]:
    """Search a list; return what it compiled."""
    folder.mkdir(parents=True)
    made = Device()
    with Journal(folder / "journal.jsonl") as journal:
        recall = Recall(journal, (), device)
        search = SmartSearch(H200)
        list(search.decisions(made.time, recall, lambda _: None, [long_list()], {}))
    return made.compiled()


def names(records: Iterable[TuningRecord]) -> list[str]:
    return sorted(record.choice_hash for record in records)


def test_what_comes_with_flytune_is_whole_lists_of_one_device() -> None:
    known = measured()
    assert {one.limits for one in known} == {H200}
    shapes = {(o.record.m, o.record.n, o.record.k) for o in known}
    assert len(shapes) == 13
    libraries = [o for o in known if o.record.backend == library().backend]
    assert len(libraries) == 13


def test_other_builds_of_the_same_device_are_learned_from(tmp_path: Path) -> None:
    compiled = build(tmp_path / "one", "a device")
    build(tmp_path / "other", "another device")
    found = earlier_builds(tmp_path, tmp_path / "own", "a device")
    assert names(found) == sorted(compiled)
    assert not list(earlier_builds(tmp_path, tmp_path / "one", "a device"))


def test_a_journal_that_is_torn_or_of_another_version_teaches_what_it_can(
    tmp_path: Path,
) -> None:
    compiled = build(tmp_path / "one", "a device")
    path = tmp_path / "one" / "journal.jsonl"
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "journal.jsonl").write_bytes(b"\x00\xff\n[1]\n")
    row = json.dumps({"kind": "record", "list": "x", "row": {"later": 1}})
    path.write_bytes(path.read_bytes() + row.encode() + b'\n{"kind": "rec')
    found = earlier_builds(tmp_path, tmp_path / "own", "a device")
    assert names(found) == sorted(compiled)


def test_a_journal_without_a_device_says_nothing(tmp_path: Path) -> None:
    build(tmp_path / "one", "")
    assert not list(earlier_builds(tmp_path, tmp_path / "own", ""))
