"""A list of each op that is tuned, small enough for any CPU."""

import torch
from fakes import library, offered

from flytune.shapes.gemm import FP4, MX_BLOCK
from flytune.tuner.candidate import CandidateList, TensorSpec

FP8 = "float8_e4m3fn"
M, N, K, GROUPS = 48, 96, 256, 4


def dense(*sizes: int, dtype: str = "bfloat16") -> TensorSpec:
    strides = torch.empty(sizes, device="meta").stride()
    return TensorSpec(sizes, strides, dtype)


def weight(*sizes: int, dtype: str = "bfloat16") -> TensorSpec:
    """Return B seen transposed: its columns are dense, as a linear's weight is."""
    *lead, k, n = sizes
    of_one = dense(*lead, n, k, dtype=dtype).strides
    return TensorSpec(sizes, (*of_one[:-2], of_one[-1], of_one[-2]), dtype)


def listed(op: str, output: TensorSpec, *inputs: TensorSpec) -> CandidateList:
    return offered([library()], op=op, inputs=inputs, output=output)


def scaled(
    scale_a: tuple[int, ...] = (M, 1),
    scale_b: tuple[int, ...] = (1, N),
    bias: bool = False,
    dtype: str = FP8,
) -> CandidateList:
    inputs = [dense(M, K, dtype=dtype), weight(K, N, dtype=dtype)]
    inputs += [dense(*scale, dtype="float32") for scale in (scale_a, scale_b)]
    return listed("scaled_mm", dense(M, N), *inputs, *([dense(N)] if bias else []))


def microscaled(dtype: str) -> CandidateList:
    """Return a list whose operands have a scale for each 32 elements of a row."""
    k = K // 2 if dtype == FP4 else K
    inputs = [dense(M, k, dtype=dtype), weight(k, N, dtype=dtype)]
    inputs += [dense(rows, K // MX_BLOCK, dtype="float8_e8m0fnu") for rows in (M, N)]
    return listed("scaled_mm", dense(M, N), *inputs)


def grouped(
    ragged: bool = True, m: int = M, groups: int = GROUPS, dtype: str = "bfloat16"
) -> CandidateList:
    b = weight(groups, K, N, dtype=dtype)
    if not ragged:
        a, out = dense(groups, m, K, dtype=dtype), dense(groups, m, N, dtype=dtype)
        return listed("grouped_mm", out, a, b)
    offsets = dense(groups, dtype="int32")
    a, out = dense(m, K, dtype=dtype), dense(m, N, dtype=dtype)
    return listed("grouped_mm", out, a, b, offsets)


LISTS = {
    "mm": listed("mm", dense(M, N), dense(M, K), weight(K, N)),
    "addmm": listed(
        "addmm",
        dense(M, N),
        TensorSpec((M, N), (0, 1), "bfloat16"),
        dense(M, K),
        weight(K, N),
    ),
    "bmm": listed("bmm", dense(3, M, N), dense(3, M, K), dense(3, K, N)),
    "scaled_mm": scaled(bias=True),
    "grouped_mm": grouped(),
    "grouped_mm 3d": grouped(ragged=False),
}


def cpu_scales_rows() -> bool:
    """Whether the CPU multiplies fp8 with a scale a row; torch 2.11 has no kernel."""
    raw = torch.zeros(16, 16, dtype=torch.float8_e4m3fn)
    ones = torch.ones(16, 1), torch.ones(1, 16)
    try:
        torch._scaled_mm(raw, raw.t(), *ones, out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True
