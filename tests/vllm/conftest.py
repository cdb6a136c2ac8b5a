import sys
from pathlib import Path

import pytest

# Tests are imported by path; this lets them import their helpers by name.
sys.path.insert(0, str(Path(__file__).parent))

from engines import BACKENDS, Baked, bake
from shared import shared


@pytest.fixture(scope="session", params=BACKENDS)
def baked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Baked:
    """A bundle of the tiny model, by each of the compile backends."""
    name = f"vllm-{request.param}"
    return shared(tmp_path_factory, name, lambda folder: bake(folder, request.param))
