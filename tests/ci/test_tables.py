"""The README's figures are those of the result files."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`ci/bench/tables.py`, which is a script beside its own modules."""
    monkeypatch.syspath_prepend(str(ROOT / "ci" / "bench"))
    spec = importlib.util.spec_from_file_location(
        "tables", ROOT / "ci" / "bench" / "tables.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("results", None)


def test_readme_holds_the_tables_of_the_results(tables: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    assert text == tables.filled(text), "run `python ci/bench/tables.py`"


def test_every_table_has_a_result_and_a_place(tables: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    for name in tables.TABLES:
        assert f"<!-- bench: {name} -->" in text
        assert list((ROOT / "ci" / "bench" / "results").glob(f"{name}.*.json"))


def test_results_have_the_fields_that_are_quoted() -> None:
    for path in (ROOT / "ci" / "bench" / "results").glob("*.json"):
        result = json.loads(path.read_text())
        expected = {"benchmark", "date", "device", "versions", "command"}
        assert expected | {"figures", "rows"} == set(result)
        assert path.name == f"{result['benchmark']}.{result['device']}.json"


def test_an_edited_figure_is_noticed(tables: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    edited = text.replace(" lowered |", " lowered, by hand |", 1)
    assert edited != text
    assert tables.filled(edited) == text
