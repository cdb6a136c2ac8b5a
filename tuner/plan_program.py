"""The program that a build bakes, and the policy that it is served under."""

import json
from typing import Any

from flytune.caches.command import CommandSpec
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.policy import (
    ServingPolicy,
    cpu_policy,
    cuda_policy,
    rocm_policy,
)
from flytune.caches.program import ProgramSpec, count_kinds
from flytune.caches.vllm_program import VllmSpec
from flytune.shapes.by_hand import HandList
from flytune.shapes.errors import FlytuneError
from flytune.shapes.model_config import ModelConfig
from flytune.tuner.options import BuildOptions, Phases


def program_of(
    options: BuildOptions,
    profile: DeviceProfile | None,
    model: ModelConfig | HandList,
    attention: str,
) -> tuple[ProgramSpec | CommandSpec | None, int]:
    """Return (what is baked, kinds of a model's layers); None where nothing runs.

    Raises:
        FlytuneError: there is nothing that could be baked, and it was asked for.
    """
    if options.bake_cmd:
        return CommandSpec(options.bake_cmd), 0
    if options.vllm:
        return VllmSpec.of(options.vllm), 0
    reason, hint = _isolated(options, profile, model), None
    if isinstance(model, ModelConfig) and not reason:
        phases = options.phases
        spec = ProgramSpec(
            json.loads(model.raw),
            attention,
            model.dtype,
            bake=options.bake,
            prefill=phases.prefill,
            decode=phases.decode,
            context=phases.context,
        )
        try:
            return spec, count_kinds(spec)
        except FlytuneError as error:
            reason, hint = str(error), error.hint
    if options.phases != Phases():
        raise FlytuneError(
            f"no program to call in phases: {reason}",
            hint=hint or "leave out --phase and --dynamic",
        )
    if options.runs_nothing:
        return None, 0
    name = "" if profile is not None else "an accelerator, --target NAME, "
    raise FlytuneError(
        f"no program to bake: {reason}",
        hint=hint or f"compile for {name or 'it '}with --compile-only",
    )


def _isolated(
    options: BuildOptions, profile: DeviceProfile | None, model: ModelConfig | HandList
) -> str:
    """Return why no program stands for the model's GEMMs; nothing where one may."""
    if isinstance(model, HandList):
        return "its GEMMs are given by hand"
    if options.ep > 1:
        return f"one of {options.ep} expert-parallel ranks"
    if model.quantised:
        return f"the weights are quantised ({model.quantised})"
    if options.tp > 1:
        return f"one of {options.tp} ranks"
    if options.engine != "transformers":
        return f"{options.engine}'s own"
    if options.quant not in (None, "bf16"):
        return f"the linears of {options.quant}"
    if profile is not None and profile.vendor == "amd" and options.runs_nothing:
        return f"one for {profile.product}, which is not here"
    return ""


def policy_of(
    options: BuildOptions,
    model: ModelConfig | HandList,
    attention: str,
    profile: DeviceProfile | None,
    kinds: int,
) -> ServingPolicy:
    """Return what the bundle is baked, verified and served under.

    Args:
        kinds: Of the model's layers.

    Raises:
        FlytuneError: what was asked for does not go together.
    """
    common: dict[str, Any] = {
        "tokens": options.tokens,
        "threads": options.threads,
        "attention": attention,
    }
    if profile is not None and options.backends is not None:
        common["backends"] = options.backends
    layers = 1
    if isinstance(model, ModelConfig) and options.bake == "layers":
        layers = model.num_hidden_layers
    if profile is not None and profile.vendor == "amd":
        policy = rocm_policy(arch=profile.arch, **common)
    elif profile is not None:
        policy = cuda_policy(**common)
    else:
        policy = cpu_policy(options.policy, **common, layers=layers)
    if options.bake_cmd:
        return policy.for_command()
    if kinds > 1 or options.phases.decode:
        policy = policy.with_layers_apart(layers)
    if options.phases.dynamic and policy.frozen:
        raise FlytuneError(
            "a frozen graph is of one size",
            hint="leave out --dynamic, or build under the unfrozen policy",
        )
    if options.phases.dynamic:
        policy = policy.with_dynamic()
    return policy.with_precompiled() if options.precompiled else policy
