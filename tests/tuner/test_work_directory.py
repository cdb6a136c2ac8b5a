"""What an earlier build left is loaded from a private directory alone."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flytune.shapes.errors import FlytuneError
from flytune.tuner.enumeration import enumerate_lists
from flytune.tuner.journal import Journal
from flytune.tuner.progress import Progress


class Planted:
    """Code that runs when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_lists_that_others_could_have_written(tmp_path: Path, mode: int) -> None:
    work, trace = tmp_path / "work" / "m", tmp_path / "trace"
    work.mkdir(parents=True)
    (work / "lists.pickle").write_bytes(pickle.dumps(Planted(trace)))
    work.chmod(mode)
    plan = cast(Any, SimpleNamespace(program=None, work=work))
    with pytest.raises(FlytuneError, match=f"written by other users: {work}"):
        enumerate_lists(plan, cast(Any, None), cast(Any, None), Progress())
    assert not trace.exists()


def test_a_new_one_is_private(tmp_path: Path) -> None:
    with Journal(tmp_path / "work" / "m" / "journal.jsonl"):
        for folder in (tmp_path / "work", tmp_path / "work" / "m"):
            assert folder.stat().st_mode & 0o777 == 0o700
