"""What the tables and words of a report say of a bundle."""

from dataclasses import replace
from pathlib import Path

import pytest
import reported
from bundles import manifest
from small_reports import UP, small_report

from flytune.caches.bundle import Bundle
from flytune.caches.packing import pack
from flytune.caches.report.axes import LinearAxis, LogAxis
from flytune.caches.report.beside import beside
from flytune.caches.report.bundles import ReportedBundle, read_bundles, short_names
from flytune.caches.report.facts import judgement, left_out
from flytune.caches.report.listing import list_rows, page_data
from flytune.caches.report.roofline import roofline
from flytune.caches.report.work import moved_bytes, operations
from flytune.caches.words import (
    percent_text,
    ratio_text,
    seconds_text,
    time_text,
)
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import FP4


@pytest.fixture
def small(tmp_path: Path) -> ReportedBundle:
    return small_report(tmp_path)


def test_numbers_have_the_unit_that_fits() -> None:
    assert [time_text(us) for us in (0.25, 12.345, 1234.5, 2.5e6, None)] == [
        *("0.250 µs", "12.3 µs", "1.23 ms", "2.50 s", "–"),
    ]
    assert seconds_text(75) == "1 min 15 s"
    assert seconds_text(0) == "0 s"
    assert seconds_text(7260) == "2 h 01 min"
    assert [ratio_text(r) for r in (1.325, 12.4, None)] == ["1.32×", "12×", "–"]
    assert [percent_text(s) for s in (0.5, 0.051, 0.0004)] == [
        "50 %",
        "5.1 %",
        "0.04 %",
    ]


def test_ticks_are_round_and_within_the_axis() -> None:
    assert [t.text for t in LogAxis(0.8, 1200, 0, 100).ticks(4)] == [
        *("1", "10", "100", "1,000"),
    ]
    linear = LinearAxis(0, 23, 100, 0)
    assert [(t.text, t.at) for t in linear.ticks(5)][:2] == [("0", 100), ("5", 78.26)]
    assert all(0 <= t.at <= 100 for t in linear.ticks())


def test_work_of_packed_and_grouped_operands() -> None:
    assert operations(UP) == 2 * 16 * 4096 * 1024
    assert moved_bytes(UP) == 2 * (16 * 1024 + 4096 * 1024 + 16 * 4096)
    fp4 = replace(UP, a_dtype=FP4, b_dtype=FP4, scaling="mxfp4")
    elements = 16 * 1024 + 4096 * 1024
    assert moved_bytes(fp4) == elements / 2 + elements / 32 + 2 * 16 * 4096
    grouped = replace(UP, op="grouped_mm", groups=8)
    assert moved_bytes(grouped) == 2 * (16 * 1024 + 8 * 4096 * 1024 + 16 * 4096)
    assert moved_bytes(replace(UP, a_dtype="float3")) is None


def test_modules_are_named_by_what_tells_them_apart() -> None:
    names = ["a.self_attn.q_proj", "a.mlp.down_proj", "a.moe.down_proj", "lm_head"]
    assert list(short_names(names).values()) == [
        *("q_proj", "mlp.down_proj", "moe.down_proj", "lm_head"),
    ]


def test_two_bundles_side_by_side(tmp_path: Path) -> None:
    first = reported.bundle(tmp_path, "old.tar.zst", tokens=(16,))
    second = reported.bundle(
        tmp_path,
        "new.tar.zst",
        tokens=(16, 64),
        triton=1.5,
        created="2026-03-02T00:00:00Z",
    )
    bundles = read_bundles([Bundle.open(first), Bundle.open(second)])
    table = beside(bundles)
    assert table is not None
    assert table.names == ("old", "new")
    assert [row.name for row in table.passes] == ["16 tokens"]
    assert len(table.lists) == 10
    only_new = [row for row in table.lists if row.values[0].text == "absent"]
    assert len(only_new) == 5
    effects = [abs(row.effect) for row in table.lists]
    assert effects == sorted(effects, reverse=True)
    packed = next(row for row in table.facts if row.name == "packed")
    assert [value.differs for value in packed.values] == [False, True]
    assert beside(bundles[:1]) is None


def test_bundles_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [reported.bundle(tmp_path / n, tokens=(16,)) for n in ("one", "two")]
    names = [one.name for one in read_bundles([Bundle.open(path) for path in paths])]
    assert names == ["llama-3.1-8b (1)", "llama-3.1-8b (2)"]


def test_the_table_of_lists_and_their_candidates(small: ReportedBundle) -> None:
    up, _ = list_rows(small)
    texts = [cell.text for cell in up.cells]
    assert texts[:8] == [
        *("16", "4096 × 1024", "bf16", "64", "triton", "10.0 µs", "1.0 %", "2.00×"),
    ]
    lists = page_data(small, roofline(small))["lists"]
    assert [row[0] for row in lists[0]["rows"]] == [
        "triton",
        "aten",
        "triton",
        "triton",
    ]
    assert lists[0]["rows"][0][-1] == "won"
    assert lists[0]["rows"][-1][-1] == "fault: died at 0x2e"
    assert lists[1]["rows"][1][-2:] == ["+25 %", "left out by race"]


def test_a_verdict_is_the_manifests_own() -> None:
    whole = manifest(verify={"ok": True, "first_call_s": 1.31, "worst_error": 0.0096})
    good = judgement(whole)
    assert (good.level, good.word) == ("good", "Verified")
    assert "first calls took 1.31 s" in good.text
    missed = judgement(manifest(verify={"ok": False, "failures": ["1 lowered"]}))
    assert (missed.level, missed.details) == ("bad", ("1 lowered",))
    assert judgement(manifest()).word == "Not verified"
    kernels = judgement(manifest(bake={"passes": []}))
    assert (kernels.level, kernels.word) == ("warn", "Kernels only")


def test_what_is_left_out_is_named_by_reason() -> None:
    coverage = {
        "missing": {"a rule": ["mm (1, 2, 3) at x", "mm (4, 5, 6) at y"]},
        "declined": {"k is odd": ["mm (1, 2, 7) at z"]},
        "untimed": ["mm (7, 8, 9) at w: no memory"],
        "unplanned": [],
        "unreached": {"custom_op:moe": 4},
    }
    rows = left_out(manifest(coverage=coverage))
    assert [(row.gemms, row.why) for row in rows] == [
        (2, "a rule"),
        (1, "k is odd"),
        (1, ""),
        (4, "serving runs them by custom_op:moe"),
    ]
    assert left_out(manifest(coverage={"missing": [1], "unreached": 3})) == ()


def test_a_bundle_without_records_is_one_clear_line(tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    staged.mkdir()
    packed = pack(staged, manifest(), tmp_path / "b.tar.zst", keys=[])
    with pytest.raises(FlytuneError, match="bundle has no records: "):
        read_bundles([Bundle.open(packed)])
