"""One run of the program, on a bundle's own files."""

import json
from pathlib import Path
from typing import Any

import pytest
from builds import copied

from flytune.caches.bundle import Bundle
from flytune.caches.child import clean_environment, run_module
from flytune.caches.policy import ServingPolicy
from flytune.caches.session import TOLERANCE
from flytune.caches.verify import SESSION


@pytest.fixture(scope="module")
def result(
    unfrozen_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = copied(unfrozen_bundle, tmp_path_factory.mktemp("session") / "b")
    manifest = Bundle.open(folder).manifest
    policy = ServingPolicy.from_json(manifest.policy)
    request = {
        "program": dict(manifest.program),
        "policy": policy.to_json(),
        "seed": 11,
    }
    env = clean_environment(policy, folder / "inductor")
    run_module(SESSION, request, folder / "result.json", env, what="the session")
    row: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return row


def test_every_size_is_called_largest_first_and_shuffled(
    result: dict[str, Any],
) -> None:
    for piece in ("layer", "head"):
        calls = [call[1:3] for call in result["calls"] if call[0] == piece]
        assert [size for size, round_ in calls if round_ == "first"] == [8, 1]
        for name in ("again", "reset"):
            sizes = [size for size, round_ in calls if round_ == name]
            assert sorted(sizes) == [1, 8]
        assert len(calls) == 6


def test_first_calls_are_compared_with_eager(result: dict[str, Any]) -> None:
    errors = {round_: [] for _, _, round_, _, _ in result["calls"]}
    for _, _, round_, seconds, error in result["calls"]:
        assert seconds > 0
        errors[round_].append(error)
    assert all(0 <= error <= TOLERANCE for error in errors["first"])
    assert errors["again"] == errors["reset"] == [None] * 4


def test_it_says_what_it_ran_under(
    result: dict[str, Any], unfrozen_bundle: Path
) -> None:
    manifest = Bundle.open(unfrozen_bundle).manifest
    assert result["threads"] == manifest.policy["threads"] == 1
    assert result["torch_key"] == manifest.target["software"]["torch_key"]
    assert result["inductor_config"] == manifest.inductor_config
    assert result["inductor_config"]["max_autotune_gemm_backends"] == "'ATEN,CPP'"
    assert f"inductor/cache/{result['system']['hash']}" in manifest.files
    assert result["peak_gib"] > 0.1
