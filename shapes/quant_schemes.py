"""The schemes that a quantised GEMM may have: types, scales and the sizes it can take.

Each is one that torch or vLLM has kernels of; `shapes/README.md` names the source of
each row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from flytune.shapes.gemm import FP4, FP8, MX_BLOCK

Quant = Literal[
    "bf16",
    "fp8",
    "fp8_rowwise",
    "fp8_block",
    "mxfp8",
    "mxfp4",
    "nvfp4",
    "awq",
    "gptq",
]
"""What may be asked of a model that is not quantised: bf16 and the schemes."""

Blocks = Literal["refined", "checked", "padded"]
"""How vLLM fits a rank's part of blocks: fp8's own method takes smaller ones of experts
and lets what it merges be; compressed-tensors refuses; modelopt pads the outputs."""

FP8_BLOCK = 128
"""Inputs, and outputs of a weight, that share a scale in block-wise fp8."""
NVFP4_BLOCK = 16
INT_BITS = (4, 8)
"""Of weights alone: what vLLM's Marlin kernels take."""
_PACKED_BITS = 32


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the operands of one GEMM are stored."""

    scaling: str
    """`GemmShape.scaling`."""
    words: str
    """What a rule says of it."""
    weights: str
    """torch's type of B."""
    activations: str = ""
    """As above, of A; the model's own where the weights alone are quantised."""
    group: int = 0
    """Inputs that share a scale, whole groups of which a rank must hold; 0: all."""
    block: int = 0
    """Outputs of the weight that share a scale; 0 for one each, or one for all."""
    blocks: Blocks = "refined"
    multiple: int = 1
    """What the outputs must be a multiple of, as the weight is packed."""


def _fp8(scaling: str, words: str) -> Scheme:
    return Scheme(scaling, f"fp8, {words}", FP8, FP8)


TENSORWISE = _fp8("tensorwise", "one scale for each operand")
ROWWISE = _fp8("rowwise", "a scale for each token and each output")
BLOCK128 = replace(
    _fp8("block128", f"a scale for each {FP8_BLOCK}x{FP8_BLOCK} of the weight"),
    group=FP8_BLOCK,
    block=FP8_BLOCK,
)
_EACH_MX = f"a scale for each {MX_BLOCK} inputs"
MXFP8 = Scheme("mxfp8", f"mxfp8, {_EACH_MX}", FP8, FP8, MX_BLOCK)
MXFP4 = Scheme("mxfp4", f"mxfp4, {_EACH_MX}", FP4, FP4, MX_BLOCK)
MXFP4_WEIGHT = Scheme(
    "mxfp4_weight", f"weights in mxfp4, {_EACH_MX}", FP4, group=MX_BLOCK
)
NVFP4 = Scheme(
    "nvfp4",
    f"nvfp4, a scale for each {NVFP4_BLOCK} inputs",
    FP4,
    FP4,
    NVFP4_BLOCK,
)


def awq(bits: int = 4, group: int = 128) -> Scheme:
    """Return weights of `bits` bits with a zero point.

    Args:
        bits: One of `INT_BITS`.
        group: Inputs that share a scale; 0 for all of an output's.
    """
    return _integers("awq", bits, group, "a scale and a zero point", f"uint{bits}")


def gptq(bits: int = 4, group: int = 128, *, ordered: bool = False) -> Scheme:
    """Return weights of `bits` bits without a zero point.

    Args:
        bits: As of `awq`.
        group: As of `awq`.
        ordered: Whether inputs are grouped by their activations (`desc_act`).
    """
    scheme = _integers("gptq", bits, group, "a scale", f"int{bits}")
    words = f"{scheme.words} in order of activations"
    return replace(scheme, words=words) if ordered else scheme


def _integers(scaling: str, bits: int, group: int, scale: str, dtype: str) -> Scheme:
    each = f"each {group} inputs" if group else "each output"
    words = f"weights in {bits} bits ({scaling}), {scale} for {each}"
    multiple = _PACKED_BITS // bits
    return Scheme(scaling, words, dtype, group=group, multiple=multiple)


BY_NAME: Mapping[str, Scheme] = {
    "fp8": TENSORWISE,
    "fp8_rowwise": ROWWISE,
    "fp8_block": BLOCK128,
    "mxfp8": MXFP8,
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
    "awq": awq(),
    "gptq": gptq(),
}
"""What each word of `--quant` is, bf16 aside."""
FINER_BLOCKS = ("block64", "block32")
"""block128 of experts whose features ranks cut within a block."""
_ALL = (*BY_NAME.values(), MXFP4_WEIGHT)
SCALINGS = (*dict.fromkeys(scheme.scaling for scheme in _ALL), *FINER_BLOCKS)
"""Each value of `GemmShape.scaling`."""
INT_TYPES = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in INT_BITS)
"""Types of weights alone; torch has these names too."""
