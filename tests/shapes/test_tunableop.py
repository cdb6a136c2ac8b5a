"""TunableOp's names of operations and keys, of each version."""

import pytest

from flytune.shapes.logs.observed import ImpossibleRowError
from flytune.shapes.logs.tunableop import entry

F8 = "Float8_e4m3fn"


@pytest.mark.parametrize(
    ("key", "scalings", "bias"),
    [
        ("tn_10240_32_8192_ld_8192_8192_10240_rw_1_bias_None", ("rowwise",), False),
        (
            "tn_10240_32_8192_ld_8192_8192_10240_rw_0_bias_BFloat16",
            ("tensorwise",),
            True,
        ),
        (
            f"tn_10240_32_8192_ld_8192_8192_10240_a_{F8}_b_{F8}_c_BFloat16_as_float_"
            "bs_float_ast_1_bst_1_dscale_0_fast_1_bias_None",
            ("rowwise",),
            False,
        ),
        ("tn_10240_32_8192", (), None),
    ],
)
def test_tunableops_scaled_names(
    key: str, scalings: tuple[str, ...], bias: bool | None
) -> None:
    gemm = entry(f"ScaledGemmTunableOp_{F8}_{F8}_BFloat16_TN", key)
    assert (gemm.ops, gemm.m, gemm.n, gemm.k) == (("scaled_mm",), 32, 10240, 8192)
    assert (gemm.a_dtypes, gemm.out_dtypes) == (("float8_e4m3fn",), ("bfloat16",))
    assert (gemm.scalings, gemm.bias) == (scalings, bias)


def test_tunableops_biased_and_old_batched_names() -> None:
    gemm = entry("GemmAndBiasTunableOp_BFloat16_TN", "tn_640_16_2880_ld_2880_2880_640")
    assert (gemm.ops, gemm.m, gemm.n, gemm.k) == (("addmm",), 16, 640, 2880)
    gemm = entry("GemmStridedBatchedTunableOp_float_NN", "nn_64_32_16_B_4")
    assert (gemm.ops, gemm.batch, gemm.m, gemm.n) == (("bmm",), 4, 32, 64)


PLAIN = "GemmTunableOp_BFloat16_TN"


@pytest.mark.parametrize(
    ("name", "key", "reason"),
    [
        # N and K swapped: a weight [8192, 16] has no rows of 4096 elements.
        (PLAIN, "tn_4096_16_8192_ld_4096_4096_8192", "leading dimensions do not fit"),
        (PLAIN, "nn_8192_16_4096_ld_8192_4096_8192", "transpose differently"),
        (PLAIN, "tn_8192_16", "unknown form of key"),
        (PLAIN, "tn_64_32_16_B_4", "a batch does not go"),
        ("GemmTunableOp_int8_TN", "tn_8192_16_4096", "unknown type: int8"),
        ("ConvTunableOp_float_TN", "tn_8192_16_4096", "unknown operation: Conv"),
    ],
)
def test_a_line_of_tunableops_that_cannot_be(name: str, key: str, reason: str) -> None:
    with pytest.raises(ImpossibleRowError, match=reason):
        entry(name, key)
