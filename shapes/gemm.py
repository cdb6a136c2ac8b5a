"""One GEMM that a model runs, and where it came from."""

from dataclasses import dataclass, fields
from typing import Any, Literal

Op = Literal["mm", "addmm", "bmm", "scaled_mm", "grouped_mm"]
Engine = Literal["transformers", "vllm"]
Platform = Literal["cuda", "rocm", "cpu"]
FP8 = "float8_e4m3fn"
FP4 = "float4_e2m1fn_x2"
"""torch's type of two 4-bit values in a byte; its tensors count bytes, K does not."""
MX = {"mxfp8": FP8, "mxfp4": FP4}
"""The types of both operands in the OCP microscaling formats that are known."""
LAYOUTS = ("TN", "NN", "TT", "NT")
"""Each value of `GemmShape.layout`; a linear's weight first."""
MX_BLOCK = 32
"""Elements of K that share one scale in those formats."""


@dataclass(frozen=True, slots=True)
class GemmShape:
    """`A [batch, m, k] @ B [batch, k, n]`; sizes in elements.

    The field names are those of the JSON and Parquet columns.
    """

    op: Op
    m: int
    """Rows of A: the tokens of one forward pass; of grouped_mm, all experts' rows."""
    n: int
    """Columns of B: a linear's output features on this rank."""
    k: int
    """The reduced size: a linear's input features on this rank, however packed."""
    batch: int = 1
    """Independent products of one bmm."""
    groups: int = 0
    """Experts of one grouped_mm; 0 for the other ops."""
    a_dtype: str = "bfloat16"
    b_dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    layout: str = "TN"
    """BLAS letters of (B, A) as stored: a linear's weight is [n, k], hence "TN";
    "NN" is a row-major B [k, n]."""
    scaling: str | None = None
    """Scale scheme of a scaled_mm, or a grouped_mm, such as "mxfp8"; None when
    unscaled."""
    bias: bool = False
    module: str = ""
    """Where the model calls it, such as "layers.*.self_attn.q_proj"."""
    count: int = 1
    """Calls in one forward pass of the whole model."""
    tp: int = 1
    """Tensor-parallel ranks that the sizes are split for."""
    ep: int = 1
    """Expert-parallel ranks that the experts are divided over."""
    engine: Engine = "transformers"
    rule: str = ""
    """The rule that made the sizes, in words."""
    reach: str = "inductor"
    """How serving reaches it: "inductor", "eager" or "custom_op:NAME"."""
    traced: bool = False
    """Whether transformers' own model agreed, run without memory."""

    @property
    def problem(self) -> tuple[str, int, int, int, int, int]:
        """What is computed, without where it came from."""
        return (self.op, self.m, self.n, self.k, self.batch, self.groups)

    def to_row(self) -> dict[str, Any]:
        """Return the JSON row, with the columns in their documented order."""
        return {field.name: getattr(self, field.name) for field in _FIELDS}

    def __str__(self) -> str:
        lead = f"{self.batch}x" if self.op == "bmm" else ""
        return f"{self.op} {lead}({self.m}, {self.n}, {self.k})"


_FIELDS = fields(GemmShape)
