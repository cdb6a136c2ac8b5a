"""A model's lists on the device at hand, and their kernels, built without it."""

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor

import pytest
from accelerator import blind, probed

from flytune.caches.device_profile import DeviceProfile, live_profile
from flytune.tuner.builder import build
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
) -> Iterator[Mapping[str, BuildResult]]:
    """Every candidate, built in processes that see no device."""
    candidates = {c.choice_hash: c for one in lists for c in one.candidates}
    folder = tmp_path_factory.mktemp("builders")
    with ProcessPoolExecutor(
        max_workers=max(1, (os.cpu_count() or 2) - 1),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=blind,
        initargs=(str(folder),),
    ) as pool:
        results = pool.map(build, candidates.values(), [profile] * len(candidates))
        yield {result.choice_hash: result for result in results}
