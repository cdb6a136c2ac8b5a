"""A model's lists on the device at hand, and their kernels, built without it."""

from collections.abc import Mapping

import pytest
from accelerator import built_blind, probed

from flytune.caches.device_profile import DeviceProfile, live_profile
from flytune.tuner.candidate import BuildResult, CandidateList


@pytest.fixture(scope="session")
def profile() -> DeviceProfile:
    found = live_profile()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def lists(tmp_path_factory: pytest.TempPathFactory) -> tuple[CandidateList, ...]:
    """The lists of a Llama-3.1-8B layer and head, as the real device offers them."""
    return probed(tmp_path_factory.mktemp("probe"), None)


@pytest.fixture(scope="session")
def builds(
    lists: tuple[CandidateList, ...],
    profile: DeviceProfile,
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, BuildResult]:
    """Every candidate, built in processes that see no device."""
    return built_blind(lists, profile, tmp_path_factory.mktemp("builders"))
