"""Ask every node of a joined Ray cluster whether its kernels are for this host."""

import functools
import re
from typing import Any

from flytune.caches.target import PartStatus, Target, compare
from flytune.shapes.errors import FlytuneError

NODE_S = 60.0
# What decides whether a kernel that a node compiles is one that this host may load.
_HARDWARE = ("arch", "isa")
_SOFTWARE = ("torch", "torch_git", "python_abi", "compiler", "glibc")
# An accelerator's kernels are made by Triton, and for some by FlyDSL.
_TRITON_SOFTWARE = ("torch", "torch_git", "triton", "python_abi")


def check_nodes(*, accelerator: bool, flydsl: bool) -> None:
    """Refuse a joined cluster with a node whose kernels this host could not use.

    Args:
        accelerator: Whether kernels are built for one, and not for this host's CPU.
        flydsl: Whether FlyDSL makes some of them.

    Raises:
        FlytuneError: a node differs in what decides kernels, or runs no flytune.
    """
    import ray

    remote = ray.remote(num_cpus=0, max_retries=0)(kernel_target)
    asked, node_of = {}, {}
    for node in ray.nodes():
        if node["Alive"]:
            on_node = remote.options(scheduling_strategy=there_only(node["NodeID"]))
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            reference = on_node.remote(accelerator=accelerator, flydsl=flydsl)
            asked[reference], node_of[reference] = name, node["NodeID"]
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=NODE_S)
    # One that died a moment ago is told of as alive for a while.
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    if silent := [asked[one] for one in late if node_of[one] in alive]:
        raise FlytuneError(
            f"a node of the cluster does not answer in {NODE_S:g} s: {silent[0]}"
        )
    here = kernel_target(accelerator=accelerator, flydsl=flydsl)
    for reference in done:
        name = asked[reference]
        try:
            there = ray.get(reference)
        except ray.exceptions.RayError as error:
            if node_of[reference] not in alive:
                continue
            raise FlytuneError(
                f"a node of the cluster cannot run flytune: {name}: {last_line(error)}",
                hint="install the same flytune on every node",
            ) from error
        if found := difference(there, here):
            raise FlytuneError(
                f"a node of the cluster cannot build for this host: {name}: {found}",
                hint="join only nodes with this host's CPU, torch and compiler; for an "
                "accelerator torch, Triton, FlyDSL if it is asked for, and Python are "
                "enough",
            )


def there_only(node: str) -> Any:
    """Return Ray's strategy of what runs on a node or fails.

    Args:
        node: By Ray's name of it.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def kernel_target(*, accelerator: bool, flydsl: bool) -> Target:
    """Return what decides kernels on the node that runs this."""
    whole = Target.here(threads=None)
    if accelerator:
        names = (*_TRITON_SOFTWARE, "flydsl") if flydsl else _TRITON_SOFTWARE
        parts = {name: whole.software[name] for name in names}
        return Target({"kind": "accelerator"}, parts)
    return Target(
        {name: whole.hardware[name] for name in _HARDWARE},
        {name: whole.software[name] for name in _SOFTWARE},
    )


def difference(there: Target, here: Target) -> str:
    """Say why what is built on a node is not for this host; nothing if it is."""
    for part in compare(there, here):
        # An older glibc's kernels load on a newer one, not the other way round.
        newer = part.part == "software.glibc" and (
            _version(part.built) > _version(part.live)
        )
        if part.status is PartStatus.MISS or newer:
            there_text, here_text = (
                " ".join(value) if isinstance(value, tuple) else value
                for value in (part.built, part.live)
            )
            return f"{part.part}: `{there_text}` there, `{here_text}` here"
    return ""


def difference_here(expected: Target) -> str:
    """Say why this node's kernels are not for the driver; nothing if they are.

    Args:
        expected: As `kernel_target` on the driver's host.
    """
    accelerator = expected.hardware.get("kind") == "accelerator"
    return difference(_here(accelerator, "flydsl" in expected.software), expected)


@functools.cache
def _here(accelerator: bool, flydsl: bool) -> Target:
    return kernel_target(accelerator=accelerator, flydsl=flydsl)


def _version(part: object) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", str(part))))


def last_line(error: Exception) -> str:
    """Return the last line of Ray's message, where the cause stands."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
