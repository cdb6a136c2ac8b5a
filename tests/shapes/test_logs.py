"""The GEMMs in others' logs: what each form says, and what cannot be."""

from pathlib import Path

import pytest
from builds import DATA

from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape
from flytune.shapes.logs.observed import ObservedGemm, ObservedGemms
from flytune.shapes.logs.read import FORMATS, read_log

LOGS = DATA / "logs"
MOE = "E=128,N=384,device_name=AMD_Instinct_MI355_OAM.json"
FORM_OF = {
    "tunableop_untuned0.csv": "tunableop",
    "tunableop_results0.csv": "tunableop",
    "tunableop_results_old.csv": "tunableop",
    "bf16_untuned_gemm.csv": "aiter-csv",
    "bf16_tuned_gemm.csv": "aiter-csv",
    "a8w8_untuned_gemm_with_spaces.csv": "aiter-csv",
    "blockscale_untuned_gemm.csv": "aiter-csv",
    "untuned_no_bpreshuffle_column.csv": "aiter-csv",
    "aiter_miss.log": "aiter-log",
    "autotune_mm.log": "inductor",
    "autotune_mm_old_no_strides.log": "inductor",
    "autotune_bmm_cpu.log": "inductor",
    "autotune_linear_cpu.log": "inductor",
    MOE: "vllm-moe",
}


def sizes(log: ObservedGemms) -> list[tuple[object, ...]]:
    return [(gemm.ops, gemm.m, gemm.n, gemm.k) for gemm, _ in log.rows]


def test_every_form_is_known_by_what_it_holds() -> None:
    assert {path.name for path in LOGS.iterdir()} == set(FORM_OF)
    for name, form in FORM_OF.items():
        assert read_log(LOGS / name).format == form


def test_tunableop_counts_columns_first() -> None:
    log = read_log(LOGS / "tunableop_untuned0.csv")
    assert sizes(log) == [
        (("mm", "addmm"), 16, 10240, 5120),
        (("mm", "addmm"), 16, 5120, 8192),
        (("mm", "addmm"), 512, 1024, 2048),
        (("bmm",), 64, 128, 512),
    ]
    first, _, half, batched = (gemm for gemm, _ in log.rows)
    assert (first.layouts, first.a_dtypes, first.out_dtypes) == (
        ("TN",),
        ("bfloat16",),
        ("bfloat16",),
    )
    assert (half.a_dtypes, half.layouts) == (("float16",), ("NN",))
    assert (batched.batch, batched.layouts) == (16, ("NT",))
    # It names two types, where TunableOp writes three.
    assert log.set_aside == {
        "unknown operation: ScaledGemmTunableOp_Float8_e4m3fn_BFloat16_TN": 1
    }


def test_tunableops_results_of_new_and_old_versions() -> None:
    new = read_log(LOGS / "tunableop_results0.csv")
    assert [each[1:] for each in sizes(new)] == [
        (16, 10240, 5120),
        (16, 5120, 8192),
        (512, 1024, 2048),
    ]
    old = read_log(LOGS / "tunableop_results_old.csv")
    assert [each[1:] for each in sizes(old)] == [(4096, 25088, 64), (4096, 4096, 64)]
    assert old.rows[0][0].a_dtypes == ("float32",)


PLAIN = "GemmTunableOp_BFloat16_TN"


def test_rows_that_cannot_be_are_counted_by_reason(tmp_path: Path) -> None:
    key = "tn_8192_16_4096_ld_4096_4096_8192"
    lines = (
        f"{PLAIN},{key},Gemm_Hipblaslt_1,0.01",
        f"{PLAIN},{key},Gemm_Hipblaslt_1,0.02",
        f"{PLAIN},{key},Default,0",
        f"{PLAIN},{key},Default,nan",
        f"{PLAIN},tn_8192_0_4096,Default,1",
        f"{PLAIN}",
    )
    log = read_log(write(tmp_path, "Validator,PT_VERSION,2.9\n" + "\n".join(lines)))
    assert [count for _, count in log.rows] == [2]
    assert log.set_aside == {
        "time is not above zero": 2,
        "a size is zero": 1,
        "not the columns of a GEMM": 1,
    }


def write(folder: Path, text: str, name: str = "x.log") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_aiters_untuned_tables() -> None:
    log = read_log(LOGS / "bf16_untuned_gemm.csv")
    assert sizes(log) == [
        (("mm",), 16, 1280, 5120),
        (("addmm",), 16, 640, 2880),
        (("mm",), 64, 256, 7168),
    ]
    router = log.rows[2][0]
    assert (router.a_dtypes, router.out_dtypes) == (("bfloat16",), ("float32",))
    assert (router.layouts, router.bias) == (("TN",), False)
    spaced = read_log(LOGS / "a8w8_untuned_gemm_with_spaces.csv")
    assert sizes(spaced) == [
        (("scaled_mm",), 1, 1280, 8192),
        (("scaled_mm",), 32, 1280, 8192),
    ]
    assert [gemm.b_dtypes for gemm, _ in spaced.rows] == [("int8",), ("float8_e4m3fn",)]
    # Sizes alone say neither type nor operation.
    plain = read_log(LOGS / "blockscale_untuned_gemm.csv").rows[1][0]
    assert (plain.ops, plain.a_dtypes) == (("mm", "addmm", "scaled_mm"), ())
    assert sizes(read_log(LOGS / "untuned_no_bpreshuffle_column.csv")) == [
        (("mm",), 1, 2304, 16384)
    ]


def test_aiters_places_that_were_never_timed_are_set_aside() -> None:
    log = read_log(LOGS / "bf16_tuned_gemm.csv")
    assert sizes(log) == [(("mm",), 16, 1280, 5120)]
    assert log.set_aside == {"us is not above zero": 1}


def test_rows_of_aiters_that_cannot_be(tmp_path: Path) -> None:
    rows = ("0,8,8,torch.bfloat16", "8,8,8,torch.float3", "8,x,8,torch.half", "8,8")
    log = read_log(write(tmp_path, "\n".join(("M,N,K,dtype", *rows, "4,8,8,bf16"))))
    assert sizes(log) == [(("mm", "addmm"), 4, 8, 8)]
    assert log.set_aside == {
        "a size is zero": 1,
        "unknown type: torch.float3": 1,
        "unknown type: torch.half": 1,
        "not the header's columns": 1,
    }


def test_aiters_log_says_what_was_asked_for() -> None:
    log = read_log(LOGS / "aiter_miss.log")
    assert sizes(log) == [
        (("mm",), 48, 1280, 5120),
        (("mm", "addmm", "scaled_mm"), 48, 1536, 7168),
        (("scaled_mm",), 48, 6144, 5120),
        (("bmm",), 48, 128, 512),
        # Found under a padded M of 64.
        (("mm",), 48, 1280, 8192),
    ]
    assert log.rows[3][0].batch == 16
    assert log.rows[3][0].a_dtypes == ("bfloat16",)
    assert log.rows[2][0].b_dtypes == ("float8_e4m3fn",)
    assert log.set_aside == {}


def test_lines_that_come_again_are_counted(tmp_path: Path) -> None:
    text = (LOGS / "aiter_miss.log").read_text()
    log = read_log(write(tmp_path, text + text.splitlines()[1] + "\n"))
    assert log.rows[0][1] == 2
    assert log.rows[0][0].n == 1536


def test_inductors_blocks() -> None:
    log = read_log(LOGS / "autotune_mm.log")
    assert sizes(log) == [(("mm",), 16, 10240, 5120), (("addmm",), 16, 640, 2880)]
    first, second = (gemm for gemm, _ in log.rows)
    assert (first.layouts, first.a_dtypes, first.bias) == (
        ("TN",),
        ("bfloat16",),
        False,
    )
    assert second.bias is True
    old = read_log(LOGS / "autotune_mm_old_no_strides.log").rows[0][0]
    assert (old.m, old.layouts, old.a_dtypes) == (4096, (), ())


def test_a_block_that_torch_wrote_on_a_cpu() -> None:
    ((scores, one), (context, other)) = read_log(LOGS / "autotune_bmm_cpu.log").rows
    assert (one, other) == (1, 1)
    assert (scores.ops, scores.batch) == (("bmm",), 4)
    assert (scores.m, scores.n, scores.k) == (32, 64, 16)
    assert scores.layouts == ("TN",)
    assert (context.m, context.n, context.k, context.layouts) == (32, 16, 64, ("NN",))


def test_a_linear_whose_weight_is_packed() -> None:
    log = read_log(LOGS / "autotune_linear_cpu.log")
    assert sizes(log) == [(("addmm",), 16, 768, 512), (("mm",), 16, 512, 768)]
    assert [(g.bias, g.layouts) for g, _ in log.rows] == [(True, ()), (False, ())]


MM = "AUTOTUNE mm(16x5120, 5120x10240)\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        # The strides of a weight [5120, 10240]: N and K are swapped.
        (MM + "strides: [5120, 1], [1, 4096]\n", "strides do not fit the sizes"),
        (MM + "strides: [5120, 1]\n", "strides or types of another block"),
        (
            MM + "strides: [5120, 1], [1, 5120, 2]\n",
            "strides or types of another block",
        ),
        (
            MM + "strides: [5120, 1], [1, 5120]\ndtypes: torch.bfloat17, torch.half\n",
            "unknown type: bfloat17",
        ),
        ("AUTOTUNE mm(s0x5120, 5120x10240)\n", "a size is not a whole number"),
        ("AUTOTUNE mm(16x5120, 4096x10240)\n", "the operands' K differ"),
        ("AUTOTUNE mm(0x5120, 5120x10240)\n", "a size is zero"),
        ("AUTOTUNE bmm(4x16x8, 2x8x4)\n", "the operands' batches differ"),
        ("AUTOTUNE convolution(1x3x8x8, 4x3x1x1)\n", "not a GEMM that is known: conv"),
        ("AUTOTUNE mm(16x5120)\n", "fewer operands"),
    ],
)
def test_a_block_that_cannot_be(tmp_path: Path, text: str, reason: str) -> None:
    log = read_log(write(tmp_path, text))
    assert log.rows == ()
    ((said, count),) = log.set_aside.items()
    assert (reason in said, count) == (True, 1)


def test_a_log_of_several_processes(tmp_path: Path) -> None:
    lead = "\x1b[36m(EngineCore pid=7)\x1b[0m "
    lines = (f"{lead}AUTOTUNE grouped_mm(64x4096, 8x4096x1536, 8)",)
    lines += (f"{lead}strides: [4096, 1], [6291456, 1, 4096], [1]",)
    lines += (f"{lead}dtypes: torch.bfloat16, torch.bfloat16, torch.int32",)
    ((gemm, _),) = read_log(write(tmp_path, "\n".join(lines))).rows
    assert (gemm.ops, gemm.groups, gemm.m, gemm.n) == (("grouped_mm",), 8, 64, 1536)
    assert (gemm.k, gemm.layouts) == (4096, ("TN",))


def test_vllms_fused_experts() -> None:
    log = read_log(LOGS / MOE)
    facts = [(g.groups, g.tokens, g.m, g.n, g.k) for g, _ in log.rows]
    assert facts == [
        (128, tokens, None, *size)
        for tokens in (1, 64, 1024)
        for size in ((768, None), (None, 384))
    ]
    assert log.set_aside == {}
    assert str(log.rows[2][0]) == (
        "grouped_mm (64 tokens, 768, ?) of 128 experts bfloat16/float16/float32"
    )


def test_vllms_quantised_experts_and_other_names(tmp_path: Path) -> None:
    text = (LOGS / MOE).read_text()
    name = "E=16,N=1536,device_name=X,dtype=fp8_w8a8,block_shape=[128,128].json"
    gemm = read_log(write(tmp_path, text, name)).rows[0][0]
    assert gemm.a_dtypes == ("float8_e4m3fn", "float8_e4m3fnuz")
    unknown = read_log(write(tmp_path, text, "E=16,N=8,device_name=X,dtype=fp3.json"))
    assert unknown.set_aside == {"unknown quantisation: fp3": 3}
    unnamed = read_log(write(tmp_path, text, "tuned.json"))
    assert unnamed.set_aside == {"the file's name does not say E and N": 3}


def test_two_forms_and_none(tmp_path: Path) -> None:
    both = (LOGS / "aiter_miss.log").read_text() + MM
    path = write(tmp_path, both)
    with pytest.raises(FlytuneError, match="aiter-log and inductor") as raised:
        read_log(path)
    assert raised.value.hint == "choose one: --format aiter-log"
    assert sizes(read_log(path, "inductor")) == [(("mm",), 16, 10240, 5120)]
    with pytest.raises(FlytuneError, match="no GEMMs of a known form") as raised:
        read_log(write(tmp_path, "nothing\n"))
    assert raised.value.hint is not None
    assert all(form.name in raised.value.hint for form in FORMATS)
    with pytest.raises(FlytuneError, match="unknown format of logs: `x`"):
        read_log(path, "x")
    with pytest.raises(FlytuneError, match="no such log"):
        read_log(tmp_path / "none")
    with pytest.raises(FlytuneError, match="not a plain file"):
        read_log(tmp_path)


def test_what_shapes_prints_is_a_log_too(tmp_path: Path) -> None:
    path = write(tmp_path, '{"n": 8, "k": 4, "m": 2, "count": 7}\n')
    log = read_log(path)
    assert (log.format, log.rows[0][1]) == ("shapes", 7)
    assert log.rows[0][0] == ObservedGemm.of_shape(GemmShape("mm", 2, 8, 4))
