import json
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flytune.shapes.errors import FlytuneError
from flytune.tuner.shapes_command import shapes_command

FIELDS = "op,m,n,k,batch,groups,a_dtype,b_dtype,out_dtype,layout,scaling,bias,module"
FIELDS += ",count,tp,ep,engine,rule,reach,traced"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(shapes_command, arguments)


def test_json_is_lines_of_rows_and_nothing_else() -> None:
    result = run(
        *("--model", "llama-3.3-70b", "--tp", "8", "--engine", "vllm"),
        *("--tokens", "8,1", "--json"),
    )
    assert result.exit_code == 0
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(",".join(row) == FIELDS for row in rows)
    assert [(row["m"], row["n"], row["k"]) for row in rows[:5]] == [
        (8, 1280, 8192),
        (8, 8192, 1024),
        (8, 7168, 8192),
        (8, 8192, 3584),
        (8, 16032, 8192),
    ]
    assert len(rows) == 10


def test_the_table_has_a_line_a_shape_and_the_default_counts() -> None:
    result = run("--model", "Qwen3-4B")
    assert result.exit_code == 0
    header, *lines = result.stdout.splitlines()
    assert (
        " ".join(header.split())
        == "op m n k batch/groups dtype count reach module rule"
    )
    assert len(lines) == 8 * 9
    assert " ".join(lines[0].split()[:7]) == "mm 1 4096 2560 1 bfloat16 36"
    assert {line.index("bfloat16") for line in lines} == {header.index("dtype")}


def test_an_engine_s_sizes_are_its_own_of_the_ranks() -> None:
    fixed = ("--model", "Qwen3-4B", "--engine", "vllm", "--json")
    rows = run(*fixed, "--tokens", "vllm", "--max-num-seqs", "8", "--spec", "1")
    counts = [json.loads(row)["m"] for row in rows.stdout.splitlines()][::5]
    assert counts == [1, 2, 4, 8, 16, 24, 32]
    rows = run(*fixed, "--tokens", "1,sglang", "--tp", "4", "--prefill-chunk", "8192")
    counts = [json.loads(row)["m"] for row in rows.stdout.splitlines()][::5]
    assert (counts[-2:], len(counts)) == ([512, 8192], 53)


def test_a_row_says_how_serving_reaches_it() -> None:
    fixed = ("--model", "Qwen3-4B", "--tokens", "8", "--engine", "vllm")
    ways = {
        platform: [
            json.loads(row)["reach"]
            for row in run(*fixed, "--platform", platform, "--json").stdout.splitlines()
        ]
        for platform in ("cuda", "rocm", "cpu")
    }
    assert ways == {
        "cuda": ["inductor"] * 4 + ["eager"],
        "rocm": ["custom_op:vllm::rocm_unquantized_gemm"] * 4 + ["eager"],
        "cpu": ["custom_op:_C::onednn_mm"] * 4 + ["eager"],
    }
    header, *lines = run(*fixed).stdout.splitlines()
    assert [line[header.index("reach") :].split()[0] for line in lines] == ways["cuda"]


def test_eager_attention_is_listed() -> None:
    result = run("--model", "Qwen3-4B", "--tokens", "16", "--attention", "eager")
    assert sum(line.startswith("bmm") for line in result.stdout.splitlines()) == 2


def test_a_quantised_linear_shows_its_scheme() -> None:
    arguments = ("--model", "Qwen3-4B", "--tokens", "8", "--quant", "mxfp4")
    header, *lines = run(*arguments).stdout.splitlines()
    kinds = [tuple(" ".join(line.split()).split()[0:6:5]) for line in lines]
    assert kinds == [("scaled_mm", "mxfp4")] * 7 + [("mm", "bfloat16")]
    assert "dtype" in header
    rows = [json.loads(row) for row in run(*arguments, "--json").stdout.splitlines()]
    assert [row["scaling"] for row in rows] == ["mxfp4"] * 7 + [None]
    assert {row["a_dtype"] for row in rows} == {"float4_e2m1fn_x2", "bfloat16"}
    assert rows[0]["k"] == 2560


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tokens", "0"), "token counts start at 1: `0`"),
        (("--tokens", "-8"), "token counts start at 1: `-8`"),
        (("--tokens", "8,x"), "no such word for tokens: `x`; known are"),
        (("--tokens", ""), "empty token count in: ``"),
        (("--tokens", "8..1"), "a range of tokens that is empty: `8..1`"),
        (("--tokens", "1..2000"), "more than 1024 token counts: `1..2000`"),
        (("--tokens", "8", "--max-num-seqs", "8"), "--max-num-seqs is of vllm"),
        (("--spec", "-1"), "-1 is not in the range x>=0"),
        (("--platform", "tpu"), "'tpu' is not one of 'cuda', 'rocm', 'cpu'"),
        (("--tp", "0"), "0 is not in the range x>=1"),
        (("--tp", "two"), "'two' is not a valid integer"),
        (("--quant", "int4"), "'int4' is not one of 'bf16', 'fp8', 'fp8_rowwise'"),
        (("--engine", "trt"), "'trt' is not one of 'transformers', 'vllm'"),
        (("--engine", "vllm", "--attention", "eager"), "--attention eager needs"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    arguments: tuple[str, ...], message: str
) -> None:
    result = run("--model", "Qwen3-4B", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert message in last


def test_a_model_must_be_named() -> None:
    assert run().exit_code == 2


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("Llama-3.3-70", "no config for model: `Llama-3.3-70`"),
        ("./nowhere", "no such config file or folder: `./nowhere`"),
    ],
)
def test_an_unknown_model_fails_with_nothing_on_stdout(
    model: str, message: str
) -> None:
    result = run("--model", model)
    assert isinstance(result.exception, FlytuneError)
    assert str(result.exception) == message
    assert result.exit_code == 1
    assert result.stdout == ""


def test_a_truncated_config_fails_with_nothing_on_stdout(tmp_path: Path) -> None:
    text = (files("flytune.shapes") / "models" / "Qwen3-4B.json").read_text("utf-8")
    (tmp_path / "config.json").write_text(text[:200])
    result = run("--model", str(tmp_path), "--json")
    assert isinstance(result.exception, FlytuneError)
    assert "config is not JSON" in str(result.exception)
    assert result.stdout == ""
