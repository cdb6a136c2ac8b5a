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
    names = [path.stem for path in BENCH.glob("*.py")]
    # Some are named as the tests' own helpers are.
    ours = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(ours)
