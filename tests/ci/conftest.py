"""The benchmarks are scripts beside their own modules: import them as they do."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "ci" / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Return a benchmark's module by its name."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module
    for path in BENCH.glob("*.py"):
        sys.modules.pop(path.stem, None)
