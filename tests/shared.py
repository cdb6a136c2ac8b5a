"""What is made once in a test run, also where several processes run the tests."""

import fcntl
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Made = TypeVar("Made")


def shared(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Made]
) -> Made:
    """Return what `make` makes in a folder of its own, or what another worker made.

    One that asks while another makes it waits. Nobody may change it.
    """
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # A worker's own folder lies in that of the run.
        root = root.parent
    result = root / f"{name}.pickle"
    with (root / f"{name}.lock").open("w") as lock:
        # It ends with the process that holds it, and children do not inherit it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            made = make(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root)))
            part = result.with_suffix(".part")
            part.write_bytes(pickle.dumps(made))
            part.replace(result)
    found: Made = pickle.loads(result.read_bytes())
    return found
