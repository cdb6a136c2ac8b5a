"""What the tests of the search share: Inductor's own lists of small modules."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fakes import task_of
from shared import shared

from flytune.tuner.candidate import BuildResult, CandidateList, TuneTask
from flytune.tuner.cpu_runner import CpuRunner
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.runner import Device
from flytune.tuner.workers import Farm

TESTS = Path(__file__).parents[1]

Built = Mapping[str, BuildResult]


@pytest.fixture(scope="session")
def real_tasks(tmp_path_factory: pytest.TempPathFactory) -> tuple[TuneTask, ...]:
    """Return every list that the small modules offer under both policies, once."""
    return shared(tmp_path_factory, "lists", _tasks)


def _tasks(folder: Path) -> tuple[TuneTask, ...]:
    result = folder / "lists.pickle"
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
    }
    command = [sys.executable, str(TESTS / "small_modules.py"), str(result)]
    subprocess.run(command, env=env, check=True, timeout=300)
    lists: tuple[CandidateList, ...] = pickle.loads(result.read_bytes())
    by_key = {made.key: made for made in lists}
    return tuple(map(task_of, by_key.values()))


@pytest.fixture(scope="session")
def real_builds(
    real_tasks: tuple[TuneTask, ...], tmp_path_factory: pytest.TempPathFactory
) -> Built:
    """Return what Ray's workers built of every candidate of the small modules."""
    candidates = {c.choice_hash: c for t in real_tasks for c in t.offered.candidates}

    def make(_: Path) -> Built:
        with Farm(None, {"OMP_NUM_THREADS": "2"}, Deadlines()) as farm:
            results = [r for r in farm.build_all(list(candidates.values())) if r]
        assert sorted(r.choice_hash for r in results) == sorted(candidates)
        return {result.choice_hash: result for result in results}

    return shared(tmp_path_factory, "real-builds", make)


@pytest.fixture(scope="module")
def cpu_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuRunner]:
    """Run in this process, with a cache that holds a few copies of no weight."""
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("runner")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(directory))
        patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
        yield CpuRunner(Device("test", cache_bytes=2**16, rotation_bytes=2**20))
