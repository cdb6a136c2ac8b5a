"""The names of types in others' logs, as torch spells them."""

from flytune.shapes.by_hand import TYPES
from flytune.shapes.logs.observed import ImpossibleRowError

_SHORT = {"bf16": ("bfloat16",), "fp16": ("float16",), "fp32": ("float32",)}
# Which of the two depends on the GPU, which the name leaves out.
FP8 = ("float8_e4m3fn", "float8_e4m3fnuz")
_OTHERS = ("float64", "float8_e5m2fnuz", "int8", "uint8", "int32")


def dtypes_of(name: str) -> tuple[str, ...]:
    """Return what a type's name may mean; nothing for an empty one.

    Args:
        name: such as "torch.bfloat16", "bf16" or "fp8".

    Raises:
        ImpossibleRowError: no type has that name.
    """
    word = name.removeprefix("torch.")
    if not word:
        return ()
    if word == "fp8":
        return FP8
    if word in _SHORT:
        return _SHORT[word]
    if word not in TYPES and word not in _OTHERS:
        raise ImpossibleRowError(f"unknown type: {name[:40]}")
    return (word,)
