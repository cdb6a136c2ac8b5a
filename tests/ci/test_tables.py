"""The README's figures are those of the result files."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# The table of what is still to be measured on an accelerator.
LATER = {"regret"}


@pytest.fixture
def tables(bench: Callable[[str], ModuleType]) -> ModuleType:
    return bench("tables")


def test_readme_holds_the_tables_of_the_results(tables: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    assert text == tables.filled(text), "run `python ci/bench/tables.py`"


def test_every_table_has_a_result_and_a_place(tables: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    for name in tables.TABLES:
        assert f"<!-- bench: {name} -->" in text
        if name not in LATER:
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


def test_builds_from_an_older_bundle_stand_beside_one_from_nothing(
    bench: Callable[[str], ModuleType],
) -> None:
    times = {"fresh": 200.0, "unchanged": 9.0, "gfx950": 50.0, "triton": 25.0}
    common = {"model": "M", "tokens": "1,16", "compiled": 2, "timed": 1, "triton": "3"}
    rows = [{"build": name, "wall_s": s, **common} for name, s in times.items()]
    text = bench("tables_upgrade").upgrade_text({"rows": rows})
    cells = [line.split("|") for line in text.splitlines()[4:]]
    assert [cell[3].strip() for cell in cells] == ["", "4.5%", "", "50.0%"]
    assert cells[0][1] == " M at 1,16 tokens, from nothing "


def test_a_table_without_a_result_is_empty(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    block = "<!-- bench: regret -->\n<!-- end -->\n"
    assert tables.filled(f"before\n{block}after\n") == f"before\n{block}after\n"


def test_the_regret_of_each_choice_has_a_line(
    tables: ModuleType, bench: Callable[[str], ModuleType]
) -> None:
    rows = [
        {"winner_over_best": 1.0, "baked_over_best": None, "peer_over_best": 1.25}
        | {"agree": True, "same_winner": True, "disturbed": False},
        {"winner_over_best": 1.02, "baked_over_best": 1.0, "peer_over_best": 1.0}
        | {"agree": False, "same_winner": False, "disturbed": True},
    ]
    figures = {"models": ["A", "B"], "tokens": [16], **bench("regret").figures_of(rows)}
    text = tables.TABLES["regret"]({"figures": figures})
    assert "2 shapes of A and B at 16 tokens" in text
    assert "| flytune's winner | 50% | 1.010 | 1.020 |" in text
    # What is not known is not near the best.
    assert "| what the graph holds | 50% | 1.000 | 1.000 |" in text
    assert "| Inductor's own pick | 50% | 1.125 | 1.250 |" in text
    assert "for 50% of the shapes" in text
    assert "Inductor's pick takes 1.107 times" in text


def test_throughput_shows_the_lists_that_were_tuned_on_both_sides(
    tables: ModuleType, bench: Callable[[str], ModuleType]
) -> None:
    def row(side: str, seconds: float, shapes: list[list[int]]) -> dict[str, Any]:
        return {
            "side": side,
            "search": "default",
            "shapes": shapes,
            "candidates": 20 * len(shapes),
            "tune_s": seconds,
            "ray_s": 1.0,
            "list_s": 1.0,
            "hashes": [["a", "b"] for _ in shapes],
        }

    shapes = [[16, 4096, 4096], [16, 1024, 4096]]
    rows = [
        row("flytune", 10.0, shapes),
        row("Inductor", 15.0, shapes[:1]),
        row("Inductor", 10.0, shapes[1:]),
        {"side": "bake", "tokens": 64, "bake_s": 30.0, "pack_and_verify_s": 9.0},
    ]
    figures = {"model": "A", **bench("throughput").figures_of(rows)}
    assert figures["speedup_default"] == 2.5
    assert figures["speedup_exhaustive"] is None
    assert figures["candidates_per_min"] == 240.0
    assert figures["same_lists_default"] == 2
    text = tables.TABLES["throughput"]({"figures": figures})
    assert "| default | 2 | 40 | 10.0 s | 25.0 s | 2.50x as fast |" in text
    assert "exhaustive |" not in text
    assert "bakes for 30 s" in text


def test_throughput_compares_no_unlike_work(bench: Callable[[str], ModuleType]) -> None:
    common = {"search": "default", "candidates": 2, "tune_s": 1.0}
    common |= {"ray_s": 0.0, "list_s": 0.0}
    rows = [
        {"side": "flytune", **common, "shapes": [[1, 2, 3]], "hashes": [["a"]]},
        {"side": "Inductor", **common, "shapes": [[1, 2, 4]], "hashes": [["a"]]},
        {"side": "bake", "tokens": 1, "bake_s": 0.0, "pack_and_verify_s": 0.0},
    ]
    assert bench("throughput").figures_of(rows)["speedup_default"] is None


def _compiled(*names: str, model: str = "A", **more: Any) -> dict[str, Any]:
    """Return what one build came to, with a list of each name."""
    counts = {
        "aten mm bfloat16": {"ok": 1},
        "flydsl mm bfloat16": {"ok": 2, "over_resources": 1},
    }
    return {
        "model": model,
        "lists": {
            name: {"shape": "mm (64, 8, 8)", "counts": counts, "reasons": ["x"]}
            for name in names
        },
        "kernels": {"flydsl": {"k": 30.0, model: 60.0}},
        "unlisted": {"why": ["mm (1, 8, 8) at a", "mm (1, 8, 8) at b"]},
        "declined": {},
        "found": 2,
        "not_found": [],
        "wall_s": 61.0,
        **more,
    }


def test_coverage_counts_a_list_of_two_builds_once(
    tables: ModuleType, bench: Callable[[str], ModuleType]
) -> None:
    coverage = bench("coverage")
    rows = [_compiled("a", "b"), _compiled("b", "c", model="B")]
    own = coverage.figures_of(rows)
    assert (own["builds"], own["lists"], own["candidates"]) == (2, 3, 12)
    assert own["statuses"] == {"ok": 9, "over_resources": 3}
    # What a rule classifies is no failure, and one kernel is of both builds.
    assert (own["failures"], own["kernels"]) == (0, {"flydsl": 3})
    assert own["compile_core_s"] == {"flydsl": 150}
    assert own["unlisted"] == {"why": ["mm (1, 8, 8)"]}
    figures = {
        **{"target": "GPU", "models": ["A", "B"], "tp": [1, 8], "tokens": [64]},
        **{"quants": ["bf16"], **own, "exhaustive": coverage.exhaustive_of(rows)},
    }
    text = tables.TABLES["coverage"]({"figures": figures})
    assert "A and B, 1 and 8 ranks, 64 tokens, bf16;" in text
    assert "| flydsl mm bfloat16 | 9 | 6 | 3 | 0 |" in text
    assert "| aten" not in text
    assert "They are 3 kernels of FlyDSL's in 2 core minutes. In the" in text
    assert "2 builds fresh processes found 4 kernels of FlyDSL's" in text
    assert "No list: 1 of the planned shapes, by `why`." in text
    assert "16 candidates with the library's, 12 ok, 4 refused by a rule" in text


@pytest.mark.parametrize("status", ["compile_error", "fault", "timeout"])
def test_coverage_counts_what_no_rule_classifies(
    bench: Callable[[str], ModuleType], status: str
) -> None:
    coverage = bench("coverage")
    assert coverage.failures_in({"ok": 3, "unsupported": 1, status: 2}) == 2
    missed = _compiled("a", not_found=["FlyDSL kernel is absent: x"])
    assert coverage.figures_of([missed])["failures"] == 1


def test_compiling_has_a_line_a_backend(
    tables: ModuleType, bench: Callable[[str], ModuleType]
) -> None:
    def row(backend: str, way: str, cores: int, seconds: float) -> dict[str, Any]:
        common = {"backend": backend, "candidates": 60, "failures": 0}
        counts = {"compilations": 30, "seconds": seconds}
        return {**common, **counts, "way": way, "cores": cores}

    rows = [row("flydsl", "loop", 1, 120.0)]
    rows += [row("flydsl", "workers", 1, 60.0), row("flydsl", "workers", 2, 30.0)]
    totals = bench("compile").totals
    figures = {"target": "GPU", **totals(rows), "flydsl": totals(rows, "flydsl")}
    text = tables.TABLES["compile"]({"figures": figures})
    cells = "120 s | 60 s (2.00x as fast) | 30 s (4.00x as fast)"
    assert f"| FlyDSL | 60 | 30 | 0 | {cells} |" in text
    assert "a build's workers on 1 core | a build's workers on 2 cores |" in text
    rates = figures["flydsl"]["per_core_min"], figures["flydsl"]["loop_per_core_min"]
    assert rates == (60, 30)
    assert "Triton |" not in text


def test_a_first_call_on_an_accelerator_says_where_its_time_goes(
    tables: ModuleType, bench: Callable[[str], ModuleType]
) -> None:
    rows = [
        _first_call(bench, vehicle, seconds)
        for vehicle, seconds in (
            ("plain", 44.0),
            ("cold", 40.0),
            ("megacache", 4.0),
            ("bundle", 3.0),
            ("bundle", 2.0),
            ("precompiled", 0.75),
            ("precompiled", 0.25),
        )
    ]
    own = bench("first_call").figures_of(rows)
    assert own["bundle_s"] == 2.0
    assert own["bundle_first_s"] == 3.0
    assert own["non_dynamo_s"] == 1.5
    assert (own["precompiled_s"], own["precompiled_over_bundle"]) == (0.25, 0.12)
    figures = {"model": "A", "layers": 2, "tokens": "64", "policy": "max", **own}
    text = tables.TABLES["first_call"]({"figures": figures})
    assert "| max | 40.0 s (20.0x) | 4.0 s (2.0x) | 2.00 s | 0 tuned" in text
    assert "0 lowered | 0.25 s |" in text
    assert text.startswith("First calls of 2 layers of A as one graph at 64 tokens")
    assert "| the bundle | 0.00 | 0.50 | 0.20 | 0.00 | 0.25 | 0.05 | 1.00 |" in text
    assert "installs the bundle: 3.00 s; with precompiled entries 0.75 s." in text
    assert "layer at 64 tokens 100 us from the bundle, 100 us from a plain" in text
    assert "replayed as a CUDA graph: layer at 64 tokens 80 us from the" in text


def _first_call(
    bench: Callable[[str], ModuleType], vehicle: str, seconds: float
) -> dict[str, Any]:
    compile_s = {
        "_compile.compile_inner": 1.0,
        "OutputGraph.call_user_compiler": 0.5,
        "AOTAutogradCache.inductor_load": 0.3,
        "TritonBundler.read_and_emit": 0.05,
    }
    session = {
        "ledger": {"events": []},
        "calls": [
            ["layer", 64, "first", seconds, 0.001],
            ["layer", 64, "steady", 1e-4, None],
            ["layer", 64, "device", 8e-5, None],
        ],
        "load_s": 0.0,
        "compile_s": compile_s,
        "saved_bytes": 1,
        "peak_gib": 1.0,
    }
    return {"vehicle": vehicle, **bench("first_call").row_of(session)}
