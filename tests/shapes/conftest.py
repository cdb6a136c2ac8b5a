"""The configs that the tests plan: shipped ones by name, others from tests/data."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flytune.shapes.model_config import ModelConfig
from flytune.shapes.registry import SHIPPED, find_model

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


@pytest.fixture(scope="session")
def load() -> Callable[[str], ModelConfig]:
    """Find a shipped model, or one whose config is in tests/data/configs."""
    shipped = {model.name for model in SHIPPED}

    def find(name: str) -> ModelConfig:
        path = DATA / "configs" / f"{name}.json"
        return find_model(name if name in shipped else str(path))

    return find
