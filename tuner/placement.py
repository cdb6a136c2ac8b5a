"""Which nodes of a Ray cluster have which accelerator.

Ray counts a node's GPUs, and names them by words of its own: what decides on kernels is
asked of the node itself, once.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flytune.caches.device_profile import DeviceProfile, live_profile
from flytune.tuner.nodes import NODE_S, last_line, there_only

Tell = Callable[[], DeviceProfile | None]
"""Runs on a node, and returns the profile of its accelerators."""
# How often a node is asked whose asking process is killed there.
_TIMES = 3
# By default Ray hides a node's devices from what asks for none.
_SEEING = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}


@dataclass(slots=True)
class AskedNodes:
    """What the nodes of a cluster have told of their accelerators, each once."""

    tell: Tell = live_profile
    profiles: dict[str, DeviceProfile] = field(default_factory=dict)
    """By node id; one that has no accelerator, or cannot tell, is not there."""
    unfit: dict[str, str] = field(default_factory=dict)
    """Why a node that Ray gives GPUs cannot be used, by node id, in words."""
    _asked: dict[Any, str] = field(default_factory=dict)
    """The nodes that have not answered yet, by what Ray will answer with."""
    _lost: dict[str, int] = field(default_factory=dict)
    """How often a node's answer was lost, by node id."""

    def ask(self, wait_s: float = NODE_S) -> Mapping[str, int]:
        """Ask the nodes that are new, and return the GPUs of all that are alive.

        Args:
            wait_s: Seconds to wait for answers. What comes later is there in a later
                call: a scheduler that must not stand still gives 0.

        Returns:
            Ray's count of each node's GPUs, by node id, in the order of addresses.
        """
        import ray

        counts = gpu_counts(ray.nodes())
        # Those that are gone never answer.
        self._asked = {r: n for r, n in self._asked.items() if n in counts}
        until = time.monotonic() + wait_s
        while self._ask_unknown(counts):
            done, _ = ray.wait(
                list(self._asked),
                num_returns=len(self._asked),
                timeout=max(until - time.monotonic(), 0.0),
            )
            answers = [self._note(self._asked.pop(r), r) for r in done]
            if all(answers) or time.monotonic() >= until:
                break
        return counts

    def _ask_unknown(self, nodes: Iterable[str]) -> bool:
        """Ask the nodes of which nothing is known; return whether any is to answer."""
        known = {*self.profiles, *self.unfit, *self._asked.values()}
        for node in nodes:
            if node not in known:
                self._asked[_ask(node, self.tell)] = node
        return bool(self._asked)

    def _note(self, node: str, reference: Any) -> bool:
        """Note what a node has told; return whether it need not be asked again."""
        import ray

        try:
            found = ray.get(reference)
        except ray.exceptions.RayError as error:
            # Of the node tells only what has run there to its end.
            self._lost[node] = self._lost.get(node, 0) + 1
            told = isinstance(error, ray.exceptions.RayTaskError)
            if told or self._lost[node] == _TIMES:
                self.unfit[node] = last_line(error)
            return node in self.unfit
        if found is None:
            self.unfit[node] = "torch finds no accelerator there"
        else:
            self.profiles[node] = found
        return True


def device_nodes(
    profile: DeviceProfile, asked: AskedNodes, wait_s: float = NODE_S
) -> list[tuple[str, int]]:
    """Return the nodes whose accelerators are those of a profile.

    Args:
        profile: Of the accelerator that is wanted; its memory may differ.
        asked: What the nodes have told; those that are new are asked now.
        wait_s: As `AskedNodes.ask` takes it.

    Returns:
        Each alive node's id and its count of GPUs, in the order of addresses.
    """
    counts = asked.ask(wait_s)
    return [
        (node, count)
        for node, count in counts.items()
        if (found := asked.profiles.get(node)) is not None and found.is_same(profile)
    ]


def gpu_counts(nodes: list[Mapping[str, Any]]) -> dict[str, int]:
    """Return the GPUs of each alive node that has some, in the order of addresses.

    Args:
        nodes: As `ray.nodes` lists them.
    """
    alive = sorted(
        (node for node in nodes if node["Alive"]),
        key=lambda node: (node["NodeManagerAddress"], node["NodeID"]),
    )
    counts = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in alive}
    return {node: count for node, count in counts.items() if count}


def _ask(node: str, tell: Tell) -> Any:
    import ray

    remote = ray.remote(num_cpus=0, max_retries=0)(_told)
    on_node = remote.options(scheduling_strategy=there_only(node), runtime_env=_SEEING)
    return on_node.remote(tell)


def _told(tell: Tell) -> DeviceProfile | None:
    return tell()
