"""The seconds of a first call, part by part."""

from collections.abc import Callable
from types import ModuleType

import pytest

TRACED = {
    "_compile.compile_inner": 2.0,
    "OutputGraph.call_user_compiler": 1.25,
    "AOTAutogradCache.inductor_load": 0.75,
    "TritonBundler.read_and_emit": 0.25,
}
# Dynamo's own entries: the graphs are in them, and no compiler is called.
PRECOMPILED = {
    "_compile.compile_inner": 0.75,
    "AOTAutogradCache.inductor_load": 0.5,
}


@pytest.mark.parametrize(
    ("compile_s", "some"),
    [
        (TRACED, {"dynamo": 0.75, "aot": 0.5, "graphs": 0.5, "kernels": 0.25}),
        (PRECOMPILED, {"dynamo": 0.25, "aot": 0.0, "graphs": 0.5}),
        ({}, {"dynamo": 0.0, "aot": 0.0}),
    ],
)
def test_parts_add_up_and_none_is_negative(
    bench: Callable[[str], ModuleType],
    compile_s: dict[str, float],
    some: dict[str, float],
) -> None:
    parts = bench("parts").parts_of(compile_s, 3.0, 0.5)
    assert sum(parts.values()) == pytest.approx(3.5)
    assert min(parts.values()) >= 0
    assert some.items() <= parts.items()
