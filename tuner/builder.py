"""Compile one candidate, in a process that never sees the device."""

import os
import pickle
import time
from pathlib import Path

from flytune.caches.records import Status
from flytune.tuner.candidate import ATEN, BuildResult, Candidate, failure


def build(candidate: Candidate) -> BuildResult:
    """Compile a candidate and return the files that running it needs.

    The process must have `TORCHINDUCTOR_CACHE_DIR` set to a directory of its own.
    A compilation that fails is a result, never an exception.
    """
    if candidate.backend == ATEN:
        return BuildResult(candidate.choice_hash, Status.OK)
    root = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    before = _files(root)
    start = time.perf_counter()
    try:
        pickle.loads(candidate.request).precompile()
    except Exception as error:  # a compiler may fail in any way: it becomes a row
        status, reason = failure(error, Status.COMPILE_ERROR)
        return BuildResult(candidate.choice_hash, status, reason)
    made = sorted(_files(root) - before)
    return BuildResult(
        candidate.choice_hash,
        Status.OK,
        compile_s=time.perf_counter() - start,
        files={name: (root / name).read_bytes() for name in made},
    )


def _files(root: Path) -> set[str]:
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }
