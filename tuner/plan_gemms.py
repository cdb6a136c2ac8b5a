"""The GEMMs of a build: a model's, and those of them that are worth building."""

import json
from pathlib import Path

from flytune.caches.device_profile import DeviceProfile
from flytune.caches.program import lowered_counts
from flytune.shapes.by_hand import HandList, read_by_hand
from flytune.shapes.derive import Attention
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape, Platform
from flytune.shapes.model_config import ModelConfig
from flytune.shapes.plan import plan_shapes
from flytune.shapes.reach import is_reached, unreached
from flytune.shapes.registry import find_model
from flytune.tuner.command_stages import command_name
from flytune.tuner.options import BuildOptions


def list_gemms(
    options: BuildOptions, attention: str, profile: DeviceProfile | None
) -> tuple[ModelConfig | HandList, tuple[GemmShape, ...]]:
    """Return what a build was asked for, and its GEMMs.

    Raises:
        FlytuneError: the model is unknown, or its GEMMs or those of a file cannot be
            listed.
    """
    platform = _platform(profile)
    if words := options.whose:
        # What it asks for is what is tuned.
        raw = json.dumps(words)
        name = Path(words[0]).name if options.vllm else command_name(words)
        return HandList(name, words[0], (), raw, "a command"), ()
    if options.by_hand is not None:
        if options.ops != ("gemm",):
            raise FlytuneError(
                "shapes by hand do not say the sizes of rmsnorm and topk",
                hint="leave --ops out",
            )
        listed = read_by_hand(options.by_hand, options.tokens, platform, options.engine)
        _check_of_one(listed)
        return listed, listed.shapes
    model = find_model(options.model)
    return model, _of_phases(options, model, attention, platform)


def _of_phases(
    options: BuildOptions, model: ModelConfig, attention: str, platform: Platform
) -> tuple[GemmShape, ...]:
    """Return the GEMMs of each phase of the program, the same ones once.

    In decoding attention's products have a side of one, and no list: they are no GEMM
    of a plan.
    """
    phases = options.phases
    bmm: Attention = "eager" if attention == "eager" else "sdpa"
    prefill = phases.prefill or (() if phases.decode else options.tokens)
    calls: tuple[tuple[tuple[int, ...], Attention], ...] = (
        (prefill, bmm),
        (phases.decode, "sdpa"),
    )
    found: dict[GemmShape, None] = {}
    for tokens, how in calls:
        counts = lowered_counts(tokens, dynamic=True) if phases.dynamic else tokens
        if counts:
            found |= dict.fromkeys(
                plan_shapes(
                    model,
                    tp=options.tp,
                    ep=options.ep,
                    engine=options.engine,
                    tokens=counts,
                    attention=how,
                    quant=options.quant,
                    platform=platform,
                )
            )
    return tuple(found)


def _check_of_one(listed: HandList) -> None:
    """Refuse rows of several ranks or engines: a bundle says whose it is.

    Raises:
        FlytuneError: there are some.
    """
    for name in ("tp", "ep", "engine"):
        said = sorted({str(getattr(shape, name)) for shape in listed.shapes})
        if len(said) > 1:
            raise FlytuneError(
                f"rows of {name} {' and '.join(said)} in one file: `{listed.source}`",
                hint="give each a file of its own",
            )


def _platform(profile: DeviceProfile | None) -> Platform:
    if profile is None:
        return "cpu"
    return "rocm" if profile.vendor == "amd" else "cuda"


def worth_building(
    listed: tuple[GemmShape, ...], options: BuildOptions
) -> tuple[tuple[GemmShape, ...], tuple[GemmShape, ...]]:
    """Return the GEMMs to build and those left out.

    Inductor's caches cannot help what serving never asks Inductor for.

    Raises:
        FlytuneError: that is all of them, and `allow_unreached` was not asked for.
    """
    if options.allow_unreached or not listed:
        return listed, ()
    reached = tuple(filter(is_reached, listed))
    # A program that is run says by itself what it asks for.
    if not reached and not (options.bake_cmd or options.vllm):
        raise FlytuneError(
            f"serving asks Inductor for none of the {len(listed)} GEMMs, which are "
            f"{', '.join(unreached(listed))}",
            hint="--allow-unreached builds them all the same",
        )
    return reached, tuple(shape for shape in listed if not is_reached(shape))
