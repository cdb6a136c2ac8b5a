"""vLLM's files of fused experts: `E=128,N=384,device_name=AMD_Instinct_MI300X.json`.

Source: `get_config_file_name` and `get_moe_configs` of vLLM's
model_executor/layers/fused_moe/fused_moe.py. N is the second dimension of w2, an
expert's inner size on a rank: w1 and w3 together have twice as many rows. The keys are
tokens; neither the model's width nor the experts of a token are said.
"""

import json
import re
from pathlib import Path
from typing import Any

from flytune.shapes.logs.dtypes import FP8
from flytune.shapes.logs.observed import (
    ImpossibleRowError,
    ObservedGemm,
    Tally,
    size_of,
)

_NAME = re.compile(
    r"E=(\d+),N=(\d+),device_name=[^,]+(?:,dtype=(\w+))?(?:,block_shape=\[[\d,]+\])?"
    r"\.json"
)
_PLAIN = ("bfloat16", "float16", "float32")
# (A's types, B's) of its names of quantisation; None where nothing is quantised.
_DTYPES: dict[str | None, tuple[tuple[str, ...], tuple[str, ...]]] = {
    None: (_PLAIN, _PLAIN),
    "fp8_w8a8": (FP8, FP8),
    "int8_w8a8": (("int8",), ("int8",)),
    "int8_w8a16": (_PLAIN, ("int8", "uint8")),
    "int4_w4a16": (_PLAIN, ("int4", "uint4")),
}


def holds(text: str) -> bool:
    """Whether a text is one JSON object of tile sizes by tokens."""
    return _configs(text) is not None


def read(text: str, tally: Tally, path: Path) -> None:
    """Count the two GEMMs of each number of tokens that the file holds.

    The sizes are in the file's name.
    """
    configs = _configs(text) or {}
    for tokens in configs:
        try:
            for gemm in _gemms(path.name, tokens):
                tally.add(gemm)
        except ImpossibleRowError as error:
            tally.set_aside(str(error))


def _configs(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return None
    tiled = {
        key: value
        for key, value in whole.items()
        if isinstance(value, dict) and "BLOCK_SIZE_M" in value
    }
    return tiled or None


def _gemms(name: str, tokens: str) -> tuple[ObservedGemm, ObservedGemm]:
    found = _NAME.fullmatch(name)
    if found is None:
        raise ImpossibleRowError("the file's name does not say E and N")
    if found[3] not in _DTYPES:
        raise ImpossibleRowError(f"unknown quantisation: {found[3][:40]}")
    a, b = _DTYPES[found[3]]
    inner = size_of(found[2])
    common: dict[str, Any] = {
        **{
            "ops": ("grouped_mm",),
            "groups": size_of(found[1]),
            "tokens": size_of(tokens),
        },
        **{"a_dtypes": a, "b_dtypes": b},
    }
    return ObservedGemm(n=2 * inner, **common), ObservedGemm(k=inner, **common)
