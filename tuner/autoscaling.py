"""Nodes that a Ray cluster does not have yet, and may get."""

import json
import math
import time
from collections.abc import Callable, Iterator

from flytune.caches.words import seconds_text
from flytune.shapes.errors import FlytuneError

NO_CORE = "no node of the Ray cluster has a core to build on"


def may_grow() -> bool:
    """Whether an autoscaler may add nodes to the cluster that was joined.

    Ray has no call that says so. An autoscaler has types of nodes, and tells of which
    each is; without one Ray names the type of each node after the node. The autoscaler
    acts on tasks that wait for what no node has.
    """
    import ray

    if not ray.is_initialized():
        return False
    # No interface for others: a version of Ray that has another tells nothing.
    unknown = (ImportError, AttributeError, TypeError, ValueError)
    try:
        return any(kind not in ("", f"node_{node}") for node, kind in _node_types())
    except (*unknown, ray.exceptions.RayError):
        return False


def await_node(since: float, most_s: float, say: Callable[[str], None]) -> float:
    """Wait for a node to build on where there was one, or where one may be added.

    Args:
        since: When the last one left, by the monotonic clock; infinite where that is
            new, and minus infinity where there never was one.
        most_s: How long to wait, in seconds.
        say: Told that a node is waited for, once.

    Returns:
        Since when there is none.

    Raises:
        FlytuneError: none may come, or none came for long.
    """
    if since == -math.inf and not may_grow():
        raise FlytuneError(NO_CORE)
    if math.isinf(since):
        say(f"build: {NO_CORE}: {waiting_words(most_s)}")
        since = time.monotonic()
    if time.monotonic() - since > most_s:
        raise FlytuneError(
            f"the Ray cluster has had no node to build on for {most_s:g} s",
            hint="the same command goes on from here once it has one",
        )
    return since


def waiting_words(most_s: float) -> str:
    """Say that a node is waited for, and for how many seconds at most."""
    return f"waiting for one, {seconds_text(most_s)} at most"


def _node_types() -> Iterator[tuple[str, str]]:
    """Yield nodes with their types, as each of Ray's two autoscalers tells them."""
    import ray
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.autoscaler.v2.sdk import get_cluster_status
    from ray.experimental.internal_kv import _internal_kv_get

    if status := _internal_kv_get(DEBUG_AUTOSCALING_STATUS):
        report = json.loads(status).get("autoscaler_report") or {}
        yield from (report.get("node_type_mapping") or {}).items()
    found = get_cluster_status(ray.get_runtime_context().gcs_address)
    for node in (*found.active_nodes, *found.idle_nodes):
        yield node.node_id, node.ray_node_type_name
