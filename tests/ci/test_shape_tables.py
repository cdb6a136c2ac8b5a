"""The page of other people's tables is as the generator makes it."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location(
        "shape_tables", ROOT / "ci" / "shape_tables.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_page_is_as_it_is_made(tables: ModuleType) -> None:
    text = tables.PAGE.read_text()
    assert text == tables.filled(text), "run `python ci/shape_tables.py`"


def test_every_copied_table_is_compared(tables: ModuleType) -> None:
    assert {path.stem for path in tables.TABLES.iterdir()} == set(tables.ENGINES)


def test_every_row_is_in_one_kind(tables: ModuleType) -> None:
    for name in tables.ENGINES:
        found = tables.judged(name)
        assert {verdict.kind for _, verdict in found} <= set(tables.KINDS)
        assert all(v.why for _, v in found if v.kind != "agree")


@pytest.mark.parametrize(
    ("row", "kind", "why"),
    [
        (("Qwen3-235B-A22B", "8", "qkv", 1280, 4096), "agree", ""),
        (("Qwen3-235B-A22B", "8", "qkv", 1152, 4096), "disagree", "only K is"),
        (("qwen32B", "", "UNMATCHED", 800, 5120), "disagree", "hidden / heads"),
        (("dsv3", "8", "q_b", 1536, 3072), "disagree", "N and K are swapped"),
        (("dsv3", "4", "kv_b", 32768, 512), "disagree", "not split over the ranks"),
        (("dsv3", "1", "kv_a", 576, 7168), "disagree", "as transformers runs it"),
        (("gptoss", "1", "moe_stage1(gate_up)", 6144, 3072), "disagree", "padded"),
        (("gptoss", "1", "moe_stage1(gate_up)", 6144, 3072, "rocm"), "agree", ""),
        (
            ("Qwen/Qwen2.5-7B-Instruct", "8", "qkv", 576, 3584),
            *("disagree", "8 ranks do not divide the model"),
        ),
        (("GPT-9", "1", "qkv", 1, 1), "no config", "no config at hand: GPT-9"),
    ],
)
def test_a_difference_has_its_reason(
    tables: ModuleType, row: tuple[Any, ...], kind: str, why: str
) -> None:
    verdict = tables.compared(tables.Row(*row), "vllm")
    assert verdict.kind == kind
    assert why in verdict.why


def test_places_that_were_never_timed_are_set_aside(tables: ModuleType) -> None:
    found = tables.judged("aiter_recorded_timings")
    untimed = sum(n for (_, v), n in found.items() if v.why.startswith("us is 0"))
    # As many as `us` is 0 in, of 1957 rows.
    assert (untimed, found.total()) == (242, 1957)
