"""One run of the program, on a bundle's own files."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builds import copied

from flytune.caches.bundle import Bundle
from flytune.caches.child import clean_environment, run_module
from flytune.caches.policy import ServingPolicy, cpu_policy
from flytune.caches.program import Piece
from flytune.caches.rounds import run_rounds
from flytune.caches.session import TOLERANCE
from flytune.caches.verify import SESSION, VERIFY_SEED


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


def test_every_size_is_called_in_every_round(
    result: dict[str, Any],
) -> None:
    for piece in ("layer", "head"):
        calls = [call[1:3] for call in result["calls"] if call[0] == piece]
        assert [size for size, round_ in calls if round_ == "first"] == [8, 1]
        for name in ("again", "variants", "reset"):
            sizes = [size for size, round_ in calls if round_ == name]
            assert sorted(sizes) == [1, 8]
        assert len(calls) == 8


@pytest.mark.parametrize("name", ["unfrozen", "frozen"])
def test_the_first_round_is_largest_first_and_the_others_are_shuffled(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    called: list[tuple[int, int]] = []
    with_grads: list[bool] = []
    numbers = itertools.count()

    def compiled(module: torch.nn.Module, *, dynamic: bool) -> Callable[..., Any]:
        assert not dynamic
        number = next(numbers)

        def call(x: torch.Tensor) -> Any:
            called.append((number, len(x)))
            with_grads.append(module.weight.requires_grad)
            return module(x)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    module = torch.nn.Linear(4, 4).requires_grad_(False)
    piece = Piece("piece", module, lambda tokens, _: ((torch.ones(tokens, 4),), {}))
    policy = cpu_policy(name, tokens=(4, 1, 16, 2, 8), threads=1, attention="eager")
    calls = run_rounds(piece, policy, seed=VERIFY_SEED)

    assert [size for _, size in called] == [call.tokens for call in calls]
    first, *later = (called[i : i + 5] for i in range(0, len(called), 5))
    descending = [16, 8, 4, 2, 1]
    assert first == [(0, size) for size in descending]
    # A frozen graph is lowered anew by each compilation: there is only one.
    compilations = [0, 0, 1] if name == "unfrozen" else [0]
    assert len(later) == len(compilations)
    # Weights of a model that was loaded may require gradients.
    rounds = [False, False, True, False] if name == "unfrozen" else [False, False]
    assert with_grads == [grads for grads in rounds for _ in descending]
    for number, round_ in zip(compilations, later, strict=True):
        assert {compilation for compilation, _ in round_} == {number}
        sizes = [size for _, size in round_]
        assert sorted(sizes, reverse=True) == descending
        assert sizes not in (descending, descending[::-1])


def test_a_mode_and_steady_calls_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    modes: list[str] = []

    def compiled(
        module: torch.nn.Module, *, dynamic: bool, mode: str
    ) -> torch.nn.Module:
        modes.append(mode)
        return module

    monkeypatch.setattr(torch, "compile", compiled)
    module = torch.nn.Linear(4, 4).requires_grad_(False)
    piece = Piece("piece", module, lambda tokens, _: ((torch.ones(tokens, 4),), {}))
    policy = cpu_policy("unfrozen", tokens=(1, 2), threads=1, attention="eager")
    calls = run_rounds(
        piece, policy, 1, again=False, variants=False, mode="max-autotune", steady=3
    )
    assert modes == ["max-autotune"]
    steady = [call for call in calls if call.round == "steady"]
    assert len(calls) == 4 + len(steady)
    assert sorted(call.tokens for call in steady) == [1, 1, 1, 2, 2, 2]
    assert {call.rel_error for call in steady} == {None}


def test_a_piece_is_called_at_its_own_sizes_and_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    module = torch.nn.Linear(4, 4).requires_grad_(False)

    def inputs(tokens: int, _: int) -> Any:
        return (torch.ones(tokens, 4),), {}

    piece = Piece("piece", module, inputs, tokens=(2, 9))
    policy = cpu_policy("unfrozen", tokens=(1, 64), threads=1, attention="eager")
    how = {"again": False, "variants": False}
    calls = run_rounds(piece, policy, 1, **how)
    assert [call.tokens for call in calls if call.round == "first"] == [9, 2]
    calls = run_rounds(piece, policy, 1, **how, between=True)
    assert [call.tokens for call in calls if call.round == "first"] == [9, 5, 2]


def test_eager_finds_its_inputs_as_the_first_call_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    class Counter(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
            x.add_(1)
            return super().forward(x), "the first is compared"

    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    kept = torch.zeros(1, 4)
    module = Counter(4, 4).requires_grad_(False)
    piece = Piece("piece", module, lambda *_: ((kept.zero_(),), {}))
    policy = cpu_policy("unfrozen", tokens=(1,), threads=1, attention="eager")
    (first, *_) = run_rounds(piece, policy, 1, again=False, variants=False)
    assert first.rel_error == 0


def test_first_calls_are_compared_with_eager(result: dict[str, Any]) -> None:
    errors = {round_: [] for _, _, round_, _, _ in result["calls"]}
    for _, _, round_, seconds, error in result["calls"]:
        assert seconds > 0
        errors[round_].append(error)
    assert all(0 <= error <= TOLERANCE for error in errors["first"])
    assert errors["again"] == errors["variants"] == errors["reset"] == [None] * 4


def test_it_says_what_it_ran_under(
    result: dict[str, Any], unfrozen_bundle: Path
) -> None:
    manifest = Bundle.open(unfrozen_bundle).manifest
    assert result["threads"] == manifest.policy["threads"] == 1
    assert result["inductor_config"] == manifest.inductor_config
    assert result["inductor_config"]["max_autotune_gemm_backends"] == "'ATEN,CPP'"
    assert result["peak_gib"] > 0.1
    assert result["compile_s"]["_compile.compile_inner"] > 0
