import sys
from pathlib import Path

import pytest

# Tests are imported by path; this lets them import their helpers by name.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor, where another test imported it, has set a variable for children."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
