"""A build's stages are clocked by their names, and shapes have one list each."""

from collections.abc import Callable
from types import ModuleType

import pytest

from flytune.shapes.gemm import GemmShape
from flytune.tuner import build
from flytune.tuner.candidate import ATEN, Candidate, CandidateList, TensorSpec, TuneTask


@pytest.fixture
def stages(bench: Callable[[str], ModuleType]) -> ModuleType:
    return bench("stages")


def _task(m: int, module: str, candidates: int = 2, op: str = "mm") -> TuneTask:
    shape = GemmShape(op="bmm" if op == "bmm" else "mm", m=m, n=8, k=4, module=module)
    spec = TensorSpec((m, 8), (8, 1), "bfloat16")
    some = tuple(Candidate(ATEN, "mm", "{}", f"{n}", b"") for n in range(candidates))
    offered = CandidateList(op, "key", "none", (spec,), spec, some, "layer", m)
    return TuneTask(shape, offered, (module,))


def test_the_pipeline_has_the_stages_that_are_clocked(stages: ModuleType) -> None:
    for name in stages.STAGES:
        assert callable(getattr(build, name)), name


def test_a_model_has_five_linears_at_a_token_count(stages: ModuleType) -> None:
    assert stages.linears("Llama-3.1-8B", 16) == (
        (16, 4096, 4096),
        (16, 1024, 4096),
        (16, 14336, 4096),
        (16, 4096, 14336),
        (16, 128256, 4096),
    )


def test_a_shape_has_the_first_list_with_a_choice(stages: ModuleType) -> None:
    only = _task(16, "one", candidates=1)
    first, second = _task(16, "first"), _task(16, "second")
    other = _task(32, "other")
    batched = _task(64, "batched", op="bmm")
    found = stages.firsts([only, first, second, other, batched], [(16, 8, 4)])
    assert found == {(16, 8, 4): first}
    assert not stages.firsts([batched, only], [(64, 8, 4), (16, 8, 4)])


def test_what_was_kept_of_lists_is_of_the_same_ones(
    bench: Callable[[str], ModuleType],
) -> None:
    lists = [
        {"shape": [16, 8, 4], "key": ["bmm"], "module": "batched"},
        {"shape": [16, 8, 4], "key": ["mm"], "module": "first"},
        {"shape": [16, 8, 4], "key": ["mm"], "module": "second"},
    ]
    found = bench("regret").first_lists(lists, [(16, 8, 4)])
    assert found[16, 8, 4]["module"] == "first"
