"""On which node of a cluster a build runs: one that its bundle is for.

A bake compiles the program where it will be served, and a CPU's candidates are timed
beside it, so the driver is on a node with the target's accelerator, or for a CPU on one
with cores.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flytune.caches.device_profile import DeviceProfile
from flytune.shapes.errors import FlytuneError
from flytune.tuner.autoscaling import NO_CORE, may_grow, waiting_words
from flytune.tuner.cluster_build import ClusterBuild, Request, place_of
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.nodes import NODE_S, there_only
from flytune.tuner.placement import AskedNodes, device_nodes

NAMESPACE = "flytune"
# What is said, what is read and a stop come at once.
_CALLS_AT_ONCE = 4
# Ray kills while others go on.
_KILL_S = 30.0
# A node that may come is looked for so often.
_LOOK_S = 2.0
_HEAD = "node:__internal_head__"


class NoNodeError(FlytuneError):
    """No node is fit for a build; one that an autoscaler adds may be."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a build needs of its node."""

    device: str = "auto"
    """As `BuildOptions.device`."""
    profile: DeviceProfile | None = None
    """Of the accelerator that is named; None where none is."""
    runs_nothing: bool = False
    """Whether any node will do."""

    @property
    def needs(self) -> dict[str, int]:
        """What Ray must have free on a node like the one that is needed."""
        if self.profile is not None or self.device == "cuda":
            return {"num_gpus": 1}
        return {"num_cpus": 1}


def begin(request: Request, wish: Wish, asked: AskedNodes) -> bool | NoNodeError:
    """Start a build on a node of this cluster, unless it runs already.

    Returns:
        Whether it was started now; what it lacks where a node for it may still come.

    Raises:
        FlytuneError: there is no node for it.
    """
    import ray

    begun = time.monotonic()
    if _running(request):
        return False
    try:
        fit = _fit_nodes(wish, asked)
    except NoNodeError as error:
        if may_grow():
            return error
        raise
    node = _with_earlier_work(fit, request)
    # Nodes that must be asked first may take a minute.
    passed_s = request.passed_s + time.monotonic() - begun
    env = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    actor = (
        ray.remote(num_cpus=0, max_concurrency=_CALLS_AT_ONCE)(ClusterBuild)
        .options(
            name=request.actor,
            namespace=NAMESPACE,
            lifetime="detached",
            runtime_env={"env_vars": env},
            scheduling_strategy=there_only(node),
        )
        .remote(replace(request, passed_s=passed_s))
    )
    # What it cannot do it says now, and not to whoever asks for lines.
    ray.get(actor.said.remote(0, 0.0))
    return True


def begun_once_there_is_a_node(
    ask: Callable[[], bool | NoNodeError], wish: Wish, say: Callable[[str], None]
) -> bool:
    """Begin a build, and wait where a node for it may still come.

    Args:
        ask: Calls `begin` on the cluster.
        say: Told that a node is waited for.

    Returns:
        Whether it was started now.

    Raises:
        FlytuneError: as `begin`, or no node has come for long.
    """
    begun, most_s = ask(), Deadlines().absent_s
    if isinstance(begun, bool):
        return begun
    say(f"{begun.line}: {waiting_words(most_s)}")
    until = time.monotonic() + most_s
    with _wanted(wish):
        while isinstance(begun, NoNodeError):
            if time.monotonic() > until:
                raise begun
            time.sleep(_LOOK_S)
            begun = ask()
    return begun


@contextmanager
def _wanted(wish: Wish) -> Iterator[None]:
    """Let a task wait for a node: an autoscaler adds one for what waits."""
    import ray

    waits = ray.remote(**wish.needs, max_retries=0)(_nothing).remote()
    try:
        yield
    finally:
        # Whose client is gone would start a Ray of his own by asking.
        if ray.is_initialized():
            ray.cancel(waits)


def _nothing() -> None:
    pass


def _running(request: Request) -> bool:
    """Whether a build is there to be followed, or waits to be brought home.

    One that has ended gives way where it has made nothing, or is to be forgotten.
    """
    import ray

    try:
        actor = ray.get_actor(request.actor, NAMESPACE)
        has_ended, has_made = ray.get(actor.state.remote())
    except (ValueError, ray.exceptions.ActorDiedError):
        return False
    except ray.exceptions.ActorUnavailableError:
        # Who follows it sees whether it comes back.
        return True
    if not has_ended or (has_made and not request.fresh):
        return True
    ray.kill(actor)
    _wait_for_name(request)
    return False


def _wait_for_name(request: Request) -> None:
    """Wait until an actor that was killed has its name no longer."""
    import ray

    until = time.monotonic() + _KILL_S
    while time.monotonic() < until:
        try:
            ray.get_actor(request.actor, NAMESPACE)
        except ValueError:
            return
        time.sleep(0.1)


def _fit_nodes(wish: Wish, asked: AskedNodes) -> list[str]:
    """Return the ids of the nodes that a build may run on, the best first.

    Raises:
        NoNodeError: there is none.
        FlytuneError: it is not said which.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    if wish.runs_nothing:
        return _by_cores(nodes, least=0)
    if wish.profile is not None:
        if there := device_nodes(wish.profile, asked):
            return [node for node, _ in there]
        raise _no_node(f"the accelerator: {wish.profile.product}", asked)
    if wish.device != "cpu":
        counts = asked.ask()
        profiles = {n: p for n, p in asked.profiles.items() if n in counts}
        products = sorted({profile.product for profile in profiles.values()})
        if len(products) > 1:
            raise FlytuneError(
                f"the cluster has several accelerators: `{'`, `'.join(products)}`",
                hint="name those to build for with --target, or --device cpu",
            )
        if products:
            return [node for node in counts if node in profiles]
        if wish.device != "auto":
            raise _no_node("an accelerator", asked)
    if not (found := _by_cores(nodes, least=1)):
        raise NoNodeError(NO_CORE)
    return found


def _by_cores(nodes: Sequence[Mapping[str, Any]], least: int) -> list[str]:
    """Return the nodes with so many cores, the head first, then by address."""
    fit = [n for n in nodes if n["Resources"].get("CPU", 0) >= least]
    fit.sort(key=lambda n: (_HEAD not in n["Resources"], n["NodeManagerAddress"]))
    return [node["NodeID"] for node in fit]


def _no_node(what: str, asked: AskedNodes) -> NoNodeError:
    why = "".join(f"; {node[:8]}: {said}" for node, said in asked.unfit.items())
    return NoNodeError(
        f"no node of the Ray cluster has {what}{why}",
        hint="compile for it with --compile-only, or start Ray where it is",
    )


def _with_earlier_work(nodes: Sequence[str], request: Request) -> str:
    """Return the node where the same build was stopped, or the first."""
    import ray

    if len(nodes) == 1:
        return nodes[0]
    remote = ray.remote(num_cpus=0, max_retries=0)(_has_work)
    answers = {
        remote.options(scheduling_strategy=there_only(node)).remote(
            request.digest
        ): node
        for node in nodes
    }
    done, _ = ray.wait(list(answers), num_returns=len(answers), timeout=NODE_S)
    for reference in done:
        try:
            if ray.get(reference):
                return answers[reference]
        except ray.exceptions.RayError:
            # It has gone meanwhile.
            continue
    return nodes[0]


def _has_work(digest: str) -> bool:
    return place_of(digest).is_dir()
