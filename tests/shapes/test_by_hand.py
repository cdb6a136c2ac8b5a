import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from flytune.shapes.by_hand import read_by_hand
from flytune.shapes.errors import FlytuneError
from flytune.tuner.cli import main
from flytune.tuner.shapes_command import shapes_command

CSV = """op, m, n, k, groups, bias, module, count
mm, 8, 4096, 2560, , , q_proj, 36
addmm,,1024,2560,0,true,k_proj,36
grouped_mm,64,768,4096,128,,experts,94
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "shapes.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_csv_file_gives_gemms_and_tokens_fill_in_m(tmp_path: Path) -> None:
    listed = read_by_hand(write(tmp_path, CSV), (1, 16))
    assert [shape.problem for shape in listed.shapes] == [
        ("mm", 8, 4096, 2560, 1, 0),
        ("addmm", 1, 1024, 2560, 1, 0),
        ("addmm", 16, 1024, 2560, 1, 0),
        ("grouped_mm", 64, 768, 4096, 1, 128),
    ]
    assert [shape.bias for shape in listed.shapes] == [False, True, True, False]
    assert {shape.rule for shape in listed.shapes} == {"by hand"}
    assert (listed.shapes[0].module, listed.shapes[0].count) == ("q_proj", 36)


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_what_shapes_prints_is_read_back(tmp_path: Path, engine: str) -> None:
    said = ("--model", "Qwen3-4B", "--engine", engine, "--tokens", "8", "--json")
    printed = CliRunner().invoke(shapes_command, said).stdout
    path = write(tmp_path, printed)
    again = CliRunner().invoke(shapes_command, ("--shapes", str(path), "--json"))
    assert again.exit_code == 0
    rows = [json.loads(line) for line in printed.splitlines()]
    # Whoever gives them by hand has traced nothing.
    expected = [row | {"traced": False} for row in rows]
    assert [json.loads(line) for line in again.stdout.splitlines()] == expected


def test_rows_without_an_engine_are_of_the_one_that_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "n,k,engine\n8,8,\n8,8,transformers\n")
    words = ("--shapes", str(path), "--engine", "vllm", "--tokens", "8", "--json")
    result = CliRunner().invoke(shapes_command, words)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["engine"] for row in rows] == ["vllm", "transformers"]


def test_a_row_keeps_its_reach_where_no_platform_is_named(tmp_path: Path) -> None:
    row = {"n": 8, "k": 8, "module": "layers.0.o_proj", "engine": "vllm"}
    path = write(tmp_path, json.dumps(row | {"reach": "inductor"}))
    for more, reach in (
        ((), "inductor"),
        (("--platform", "rocm"), "custom_op:vllm::rocm_unquantized_gemm"),
    ):
        words = ("--shapes", str(path), "--json", *more)
        result = CliRunner().invoke(shapes_command, words)
        assert [json.loads(li)["reach"] for li in result.stdout.splitlines()] == (
            [reach] * 9
        )


@pytest.mark.parametrize(
    "words",
    [
        ("shapes", "--tp", "2"),
        ("shapes", "--ep", "2"),
        ("shapes", "--quant", "fp8"),
        ("shapes", "--experts", "each"),
        ("shapes", "--attention", "sdpa"),
        ("build", "--tp", "1"),
        ("build", "--ep", "2"),
        ("build", "--quant", "fp8"),
        ("build", "--attention", "eager"),
    ],
)
def test_what_is_of_a_model_alone_goes_with_no_file(
    tmp_path: Path, words: tuple[str, str, str]
) -> None:
    command, option, value = words
    path = write(tmp_path, "n,k\n8,8\n")
    result = CliRunner().invoke(main, (command, "--shapes", str(path), option, value))
    assert result.exit_code == 2
    said = f"{option} is of --model: a file of shapes says it"
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": None}, "k is missing in line 1"),
        ({"n": 0}, "n is not from 1 to"),
        ({"n": "9" * 5000}, "n is not from 1 to"),
        ({"n": 2.5}, "n is not a whole number"),
        ({"n": True}, "n is not a whole number"),
        ({"n": "-8"}, "n is not a whole number"),
        ({"op": "conv"}, "op is not one of mm, addmm"),
        ({"op": ["mm"]}, "op is not one of mm, addmm"),
        ({"a_dtype": "int4"}, "a_dtype is not one of bfloat16"),
        ({"layout": "nt"}, "layout is not one of TN, NN"),
        ({"bias": 1}, "bias is not true or false"),
        ({"bias": True}, "bias does not go with mm"),
        ({"batch": 2}, "batch does not go with mm"),
        ({"groups": 2}, "groups does not go with mm"),
        ({"op": "grouped_mm"}, "groups does not go with grouped_mm"),
        ({"scaling": "mxfp8"}, "scaling does not go with mm"),
        ({"op": "scaled_mm"}, "scaling does not go with scaled_mm"),
        ({"reach": "triton"}, "reach is not one of inductor, eager, custom_op:NAME"),
        ({"reach": "custom_op:"}, "reach is not one of inductor, eager, custom_op:"),
        ({"reach": ["eager"]}, "reach is not one of inductor, eager, custom_op:"),
        ({"N": 8}, "N is not a column of shapes"),
    ],
)
def test_a_value_that_cannot_be_names_column_and_line(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, json.dumps({"m": 1, "n": 8, "k": 8} | change))
    with pytest.raises(FlytuneError) as caught:
        read_by_hand(path, (1,))
    assert str(caught.value).startswith(message)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no shapes in"),
        ("n,k\n", "no shapes in"),
        ("n,k\n8,8,8\n", "line 2 has not the header's columns"),
        ("n,k,grups\n8,8,\n", "`grups` is not a column of shapes in line 1"),
        ("n,n,k\n8,8,8\n", "`n` is there twice in line 1"),
        ('{"n": 8, "k": 8, "n": 9}', "`n` is there twice in line 1"),
        ('[{"n": 8, "k": 8}]', "shapes are a JSON array"),
        ("n,k\n8\n", "line 2 has not the header's columns"),
        ('n,k\n"8,8', "line 1 is not CSV"),
        ('{"n": 8}\n{"n": 8, "k"', "k is missing in line 1"),
        ('{"n": 8, "k": 8}\n{"n"', "line 2 is not JSON"),
        ('{"n": 8, "k": 8}\n[]', "line 2 is not a JSON object"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(FlytuneError, match=message):
        read_by_hand(write(tmp_path, text), (1,))


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    with pytest.raises(FlytuneError, match="not UTF-8"):
        read_by_hand(tmp_path / "raw", (1,))
    with pytest.raises(FlytuneError, match="not a plain file: "):
        read_by_hand(tmp_path, (1,))
    with pytest.raises(FlytuneError, match="no such file of shapes: "):
        read_by_hand(tmp_path / "none", (1,))


@given(st.text())
def test_any_text_is_shapes_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text(text, encoding="utf-8", errors="replace")
    with suppress(FlytuneError):
        assert read_by_hand(path, (1,)).shapes


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "give --model or --shapes"),
        (
            ("--model", "Qwen3-4B", "--shapes", "x.csv"),
            "give --model or --shapes, and not both",
        ),
    ],
)
def test_a_model_or_shapes_are_given(words: tuple[str, ...], error: str) -> None:
    result = CliRunner().invoke(shapes_command, words)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: {error}"
