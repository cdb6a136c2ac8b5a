"""What vLLM is asked before anything is built: its key, and what a bake will take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from flytune.caches.command import command_environment
from flytune.caches.policy import ANY_COMPILER, ServingPolicy
from flytune.caches.vllm_factors import PIECEWISE, VllmFactors, ask, check_portable

# vLLM names its own caches, and the place is in no key.
_NOWHERE = Path("/nonexistent")
# vLLM decides on the rest: what is set here is part of its key. On a CPU it has its
# workers set the first, and not the process that starts them.
_INDUCTOR: dict[str, dict[str, Any]] = {
    "cpu": {"cpp.dynamic_threads": True},
    "cuda": {"cpp.cxx": list(ANY_COMPILER)},
}
# What another backend than vLLM's compiles is stored ahead of time, and never loaded.
_NOT_AHEAD = {"VLLM_USE_AOT_COMPILE": "0"}


def plan_vllm(
    arguments: tuple[str, ...], policy: ServingPolicy
) -> tuple[ServingPolicy, VllmFactors]:
    """Return the policy that vLLM is baked and served under, and its key's factors.

    Args:
        arguments: Of `vllm serve`, the model first.
        policy: Of the device.

    Raises:
        FlytuneError: vLLM is absent, refuses the arguments, or has changed; or its key
            would hold what is this machine's alone.
    """
    inductor = _INDUCTOR[policy.device]
    policy = replace(policy.for_command(), name="vllm", inductor=inductor)
    factors = _ask(arguments, policy)
    if factors.ahead and factors.shapes["mode"] != PIECEWISE:
        policy = replace(policy, env={**policy.env, **_NOT_AHEAD})
        factors = _ask(arguments, policy)
    # Now, and not when all is baked.
    check_portable(factors, arguments)
    return policy, factors


def _ask(arguments: tuple[str, ...], policy: ServingPolicy) -> VllmFactors:
    return ask(arguments, command_environment(policy, _NOWHERE), policy.inductor)
