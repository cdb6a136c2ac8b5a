"""What a GEMM computes and moves, for a roofline."""

from flytune.shapes.gemm import MX_BLOCK, GemmShape

BITS = {
    "float64": 64,
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "int8": 8,
    "uint8": 8,
    "float4_e2m1fn_x2": 4,
    "int4": 4,
    "uint4": 4,
}
"""Of one element, however packed."""


def operations(shape: GemmShape) -> int:
    """Return the multiplications and additions of one call."""
    return 2 * shape.batch * shape.m * shape.n * shape.k


def moved_bytes(shape: GemmShape) -> float | None:
    """Return the bytes of both operands and the result, each once.

    Scales are counted where they are a block's; None for a type that is not known.
    """
    types = (shape.a_dtype, shape.b_dtype, shape.out_dtype)
    if any(dtype not in BITS for dtype in types):
        return None
    a, b, out = (BITS[dtype] / 8 for dtype in types)
    # A grouped GEMM reads each expert's weight, a bmm each product's own.
    weights = max(shape.groups, 1) * shape.batch
    left = shape.batch * shape.m * shape.k
    right = weights * shape.k * shape.n
    scales = (left + right) / MX_BLOCK if (shape.scaling or "").startswith("mx") else 0
    return left * a + right * b + shape.batch * shape.m * shape.n * out + scales


def tflops(shape: GemmShape, us: float) -> float:
    """Return the rate of a call that takes `us`, in 10^12 operations a second."""
    return operations(shape) / us / 1e6


_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def type_name(shape: GemmShape) -> str:
    """Return `type_of` as charts write it."""
    return short_type(type_of(shape))


def short_type(kind: str) -> str:
    """Return what charts write for a type, or for a scheme of scaling."""
    return "fp8" if kind.startswith("float8") else _SHORT.get(kind, kind)


def type_of(shape: GemmShape) -> str:
    """Return what the multipliers work on: the scheme of scaling, else A's type."""
    return shape.scaling or shape.a_dtype
