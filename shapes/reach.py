"""How serving reaches each GEMM: by Inductor, whose caches can help it, or past it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape, Platform
from flytune.shapes.reach_ways import INDUCTOR, WAYS, Part


def reach_of(
    shape: GemmShape, platform: Platform, architecture: str = "", method: str = ""
) -> str:
    """Return how serving reaches a GEMM: `INDUCTOR`, `EAGER` or `custom_op:NAME`.

    Args:
        architecture: Of the model's config; nothing where it is not known.
        method: The config's quantization; nothing where `--quant` alone asks for it.

    Raises:
        FlytuneError: the engine runs no such GEMM there.
    """
    part = _part(shape)
    for way in WAYS:
        if (
            way.engine == shape.engine
            and _fits(part, way.parts)
            and _fits(platform, way.platforms)
            and _fits(shape.scaling, way.schemes)
            and _fits(method, way.methods)
            and _fits(architecture, way.architectures)
            and _fits(shape.op, way.ops)
            and _fits(shape.a_dtype, way.dtypes)
        ):
            return way.reach
    raise FlytuneError(
        f"{shape.engine} runs no GEMM of {shape.scaling} on {platform}: "
        f"`{shape.module}`",
        hint="choose another --quant or --engine; bf16 runs everywhere",
    )


def _fits(value: object, known: tuple[object, ...]) -> bool:
    return not known or value in known


def _part(shape: GemmShape) -> Part:
    """Return what of a model a GEMM is, by its module."""
    *path, leaf = shape.module.split(".")
    if leaf == "lm_head":
        return "head"
    if leaf == "experts" or "experts" in path:
        return "experts"
    if any(name.startswith("shared_expert") for name in (*path, leaf)):
        return "shared experts"
    if leaf in ("gate", "router"):
        return "router"
    if shape.op == "bmm" or leaf == "kv_b_proj":
        return "attention"
    # The module is called as in layers of full attention; the rule tells them apart.
    return "lightning" if "linear heads" in shape.rule else "linear"


def with_reach(
    shapes: Iterable[GemmShape],
    platform: Platform,
    architecture: str = "",
    method: str = "",
) -> tuple[GemmShape, ...]:
    """Return the shapes, each with how it is reached; the rest is as in `reach_of`."""
    return tuple(
        replace(shape, reach=reach_of(shape, platform, architecture, method))
        for shape in shapes
    )


def is_reached(shape: GemmShape) -> bool:
    """Whether Inductor's caches can help it."""
    return shape.reach == INDUCTOR


def unreached(shapes: Iterable[GemmShape]) -> dict[str, int]:
    """Return how many GEMMs serving reaches in which way past Inductor."""
    return dict(Counter(shape.reach for shape in shapes if not is_reached(shape)))


def reach_words(reached: int, others: Mapping[str, int]) -> str:
    """Say how many GEMMs are reached, where `others` are not."""
    total = reached + sum(others.values())
    return (
        f"{reached} of {total} GEMMs are reached by Inductor; the others are "
        f"{', '.join(others)}"
    )
