"""What the benchmark of smart search counts, and that a real list is searched well."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

SHAPE = [64, 8192, 1024]


@pytest.fixture
def smart(bench: Callable[[str], ModuleType]) -> ModuleType:
    return bench("smart")


def test_a_tenth_of_a_real_list_holds_its_fastest(smart: ModuleType) -> None:
    known = smart.measured()
    (one,) = [
        each
        for each in smart.replayed(known)
        if [each.best.m, each.best.n, each.best.k] == SHAPE
    ]
    others = smart.left(known, one, tokens_out=False)
    assert len(others) == len(known) - len(one.records)
    row = smart.row_of(one, others, 0.1, 0)
    assert row["shape"] == SHAPE
    assert row["regret"] <= smart.NEAR
    assert 0.05 * row["candidates"] < row["compiled"] <= 0.1 * row["candidates"]
    # No trivial list: neither the library nor chance would do.
    assert row["library_regret"] > 1.05
    assert row["random_regret"] > 1.05
    assert 1 <= row["default_regret"] <= row["library_regret"]
    assert row["winner_regret"] <= 1.02


def test_a_token_count_is_left_out_whole(smart: ModuleType) -> None:
    known = smart.measured()
    one = smart.replayed(known)[0]
    others = smart.left(known, one, tokens_out=True)
    assert others
    assert all(other.record.m != one.best.m for other in others)


def row(shape: list[int], regret: float) -> dict[str, Any]:
    return {
        **{"shape": shape, "regret": 1.0, "compiled": 10, "candidates": 200},
        "winner_regret": regret,
        **{"share": 0.05, "random_near": 0.5, "library_regret": 1.2},
        "default_regret": 1.0,
    }


def test_a_shape_is_near_where_every_search_of_it_was(smart: ModuleType) -> None:
    rows = [row([1, 2, 3], 1.0), row([1, 2, 3], 1.02), row([4, 5, 6], 1.005)]
    figures = smart.figures_of(rows)
    assert figures["shapes"] == 2
    assert figures["shapes_within_1pct"] == 1
    assert figures["shapes_tried_within_1pct"] == 2
    assert figures["far"] == 1
    assert figures["searches_within_1pct"] == 2
    assert figures["share_compiled"] == 0.05
    assert figures["library_within_1pct"] == 0
    assert figures["default_within_1pct"] == 2
