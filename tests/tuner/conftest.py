"""What the tests of the search share: Inductor's own lists of small modules."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flytune.tuner.candidate import CandidateList

TESTS = Path(__file__).parents[1]

Lists = tuple[CandidateList, ...]


@pytest.fixture(scope="session")
def real_lists(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Lists]:
    """Return the lists of the small modules under a policy, asked for once."""
    known: dict[str, Lists] = {}

    def lists(policy: str) -> Lists:
        if policy not in known:
            folder = tmp_path_factory.mktemp(policy)
            result = folder / "lists.pickle"
            env = {
                **os.environ,
                "OMP_NUM_THREADS": "2",
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                "TORCHINDUCTOR_VEC_ISA_OK": "1",
            }
            script = str(TESTS / "small_modules.py")
            subprocess.run(
                [sys.executable, script, policy, str(result)], env=env, check=True
            )
            known[policy] = pickle.loads(result.read_bytes())
        return known[policy]

    return lists
