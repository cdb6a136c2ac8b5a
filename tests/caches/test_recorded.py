"""Other people's tables, as their tools write them."""

from pathlib import Path

import pytest
from builds import DATA

from flytune.caches.recorded import RecordedTime, read_recorded
from flytune.shapes.errors import FlytuneError

TABLES = DATA / "recorded"


def test_aiters_winners_without_their_placeholders() -> None:
    table = read_recorded(TABLES / "aiter.csv")
    assert table.times == (
        RecordedTime(
            *("mm", 16, 1280, 5120, 0, "bfloat16", "flydsl", 6.5),
            source="aiter.csv: AITER",
        ),
    )
    assert table.passed_over == 1


def test_tunableop_counts_columns_first_and_in_milliseconds() -> None:
    table = read_recorded(TABLES / "tunableop_results0.csv")
    # tn_10240_16_5120: 10240 features of 16 tokens.
    first, second, third = table.times
    assert (first.m, first.n, first.k, first.layout) == (16, 10240, 5120, "TN")
    assert (first.backend, first.dtype) == ("aten", "bfloat16")
    assert first.us == pytest.approx(21.4)
    assert first.source == "tunableop_results0.csv: Gemm_Hipblaslt_470001"
    assert (second.m, second.n, second.k) == (16, 5120, 8192)
    assert (third.m, third.n, third.dtype, third.layout) == (512, 1024, "float16", "NN")
    assert table.passed_over == 0


def test_an_older_tunableop_has_shorter_keys() -> None:
    table = read_recorded(TABLES / "tunableop_results_old.csv")
    sizes = [(t.m, t.n, t.k, t.dtype, t.layout) for t in table.times]
    assert sizes == [
        (4096, 25088, 64, "float32", "NT"),
        (4096, 4096, 64, "float32", "NT"),
    ]


def test_tflops_become_a_time_a_backend() -> None:
    table = read_recorded(TABLES / "flydsl.csv")
    scaled = [t for t in table.times if (t.op, t.m, t.n) == ("scaled_mm", 32, 4096)]
    assert [t.backend for t in scaled] == ["aten", "ck", "flydsl"]
    assert {(t.k, t.dtype, t.groups) for t in scaled} == {(4096, "mxfp8", 0)}
    # 2 * 32 * 4096 * 4096 operations at 65.5 TFLOP/s.
    assert scaled[2].us == pytest.approx(16.39, abs=0.01)
    grouped = [t for t in table.times if t.op == "grouped_mm"]
    assert len(grouped) == 7 * 3
    # Eight groups of 512 rows.
    assert (grouped[0].m, grouped[0].groups, grouped[0].dtype) == (4096, 8, "bfloat16")
    rate = 2 * 4096 * 2048 * 8192 / grouped[2].us / 1e6
    assert rate == pytest.approx(1016.4)
    # A fused epilogue is another kernel, and a row of means is no shape.
    assert {t.m for t in table.times if t.op == "mm"} == {32, 128, 512}
    assert table.passed_over == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a table of recorded times"),
        ("a,b\n1,2\n", "not a table of recorded times"),
        ("M,N,K\n1,2,3\n", "not a table of recorded times"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_file_of_another_form(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(FlytuneError, match=said):
        read_recorded(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match="cannot be read"):
        read_recorded(tmp_path / "none.csv")


def test_damaged_rows_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "aiter.csv"
    rows = ("16,,5120,1.0", "x,1,1,1.0", "1,1,1,nan", "1.5,1,1,1", "1,1", "2,3,4,5")
    path.write_text("M, N, K, us\n" + "\n".join(rows) + "\n\n")
    table = read_recorded(path)
    assert [(t.m, t.n, t.k, t.us) for t in table.times] == [(2, 3, 4, 5.0)]
    assert table.passed_over == 5
