"""Which of Inductor's FlyDSL candidates are one kernel: told without FlyDSL.

FlyDSL compiles a configuration, not a shape: sizes and most strides are arguments of
its kernels. What it still distinguishes, besides the parameters in the rendered
source, is whether K leaves a tail, and each tensor's type and unit-stride axis.
"""

import hashlib
import json
import re
from collections.abc import Sequence

from flytune.tuner.candidate import TensorSpec

_VALUE = re.compile(r"^([A-Z_]+): fx\.Constexpr = (\w+)\n", re.MULTILINE)
_SIZES = ("GEMM_M", "GEMM_N", "GEMM_K")
_TAIL = ("TILE_K", "STAGES", "USE_HALF_TILE_INTERLEAVED")


def build_key(source: str, inputs: Sequence[TensorSpec]) -> str:
    """Return a key that two candidates share if and only if they are one kernel.

    Empty where the source is not of a form that is known here: the candidate is then
    compiled by itself.

    Args:
        source: The module that Inductor rendered.
        inputs: In the order of the module's arguments.
    """
    values = dict(_VALUE.findall(source))
    if not values.keys() >= {*_SIZES, *_TAIL}:
        return ""
    k, tile_k, stages = (_int(values[n]) for n in ("GEMM_K", "TILE_K", "STAGES"))
    if k is None or tile_k is None or stages is None or tile_k == 0:
        return ""
    # As `infer_has_k_tail` of the templates has it.
    tiles = -(-k // tile_k)
    in_pairs = values["USE_HALF_TILE_INTERLEAVED"] == "True"
    tail = bool(k % tile_k) or tiles < stages - 1 or (in_pairs and tiles % 2 != 0)
    alike = _VALUE.sub(lambda m: "" if m[1] in _SIZES else m[0], source)
    tensors = [[one.dtype, len(one.sizes), _unit_axis(one)] for one in inputs]
    text = json.dumps([alike, tail, tensors])
    return hashlib.sha256(text.encode()).hexdigest()


def _int(word: str) -> int | None:
    return int(word) if word.isdecimal() else None


def _unit_axis(tensor: TensorSpec) -> int:
    """Return the axis that FlyDSL takes for contiguous; -1 where it refuses."""
    return tensor.strides.index(1) if 1 in tensor.strides else -1
