"""Compile on Ray's workers: what `batches.Builders` is of a cluster.

Nodes may join and leave meanwhile. One that says it cannot build, for its torch is
another or its disk full, is left out; what it was given goes to others.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flytune.caches.columns import Status
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.flydsl_kernel import BLIND
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError
from flytune.tuner.autoscaling import await_node
from flytune.tuner.batches import BuildEvent, Ended, Lost
from flytune.tuner.build_worker import Begun, Told, Unfit, build_in_worker
from flytune.tuner.candidate import Candidate, failure
from flytune.tuner.cluster import ray_failed, refuse_full_disk, require_head
from flytune.tuner.deadlines import Deadlines

# A compiler, and torch beside it: a node builds no more at once than its memory holds.
_BUILD_BYTES = 2**30
# A worker that is this far ahead of the driver waits for it.
_MOST_UNTAKEN = 4
_MOMENT_S = 0.02
# Nodes are counted anew at most so often.
_NODES_S = 1.0


@dataclass(slots=True)
class _Running:
    """A batch that was handed out."""

    candidates: Sequence[Candidate]
    done: int = 0
    deadline: float = math.inf
    """Others may use the cluster: the clock starts when the task does."""

    @property
    def left(self) -> tuple[Candidate, ...]:
        """Those without a result."""
        return tuple(self.candidates[self.done :])


@dataclass(slots=True)
class Limits:
    """What a driver makes no use of, from one build to the next."""

    most: float = math.inf
    """Batches that may be handed out."""
    unfit: dict[str, str] = field(default_factory=dict)
    """Nodes that are left out, by Ray's name, and why."""
    absent_since: float = -math.inf
    """Since when there is no node, by the monotonic clock; infinite while there is one,
    and minus infinity before they were counted."""


class RayBuilders:
    """The cores of a cluster, for the candidates of one build."""

    def __init__(
        self,
        profile: DeviceProfile | None,
        deadlines: Deadlines,
        limits: Limits,
        expected: Target | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Begin with nothing handed out.

        Args:
            profile: Of the accelerator that is compiled for; None for the CPU.
            deadlines: How long a candidate may take, and how long nodes may be absent.
            limits: What of the cluster is left alone; unfit nodes are added.
            expected: As `kernel_target` here, where other nodes may join; or None.
            say: Told that a node is waited for.
        """
        self._profile, self._deadlines = profile, deadlines
        self._limits, self._expected, self._say = limits, expected, say
        self._running: dict[Any, _Running] = {}
        self._slots, self._needs = 0, build_needs(())
        """What the nodes that are fit allow at once, and each build asks of one."""
        self._counted = -math.inf
        self._task: tuple[Any, Any] | None = None

    def most_at_once(self) -> int:
        """Return how many batches may be handed out, those in work among them.

        Twice as many as cores and memory allow at once: those wait for a worker, which
        then need not wait for the driver. One where there is no node: an autoscaler
        adds nodes for what waits.

        Raises:
            FlytuneError: there is no node to build on, and none may come, or none came
                for long.
        """
        self._count_nodes()
        if self._slots:
            self._limits.absent_since = math.inf
        else:
            since, most_s = self._limits.absent_since, self._deadlines.absent_s
            self._limits.absent_since = await_node(since, most_s, self._say)
        return int(min(2 * self._slots or 1, self._limits.most))

    def submit(self, batch: Sequence[Candidate]) -> None:
        """Hand out a batch."""
        stream = self._remote().remote(batch, self._profile, self._expected)
        self._running[stream] = _Running(batch)

    def wait(self) -> Sequence[BuildEvent]:
        """Return what has happened; after about a second, though nothing has.

        Raises:
            FlytuneError: Ray itself fails, or no node has space on its disk.
        """
        import ray

        if not self._running:
            time.sleep(_NODES_S)
            return ()
        streams = list(self._running)
        ready, _ = ray.wait(streams, num_returns=1, timeout=1.0)
        if ready and len(streams) > 1:
            # Asking Ray takes as long for one as for all that end in a moment.
            time.sleep(_MOMENT_S)
            ready, _ = ray.wait(streams, num_returns=len(streams), timeout=0.0)
        events: list[BuildEvent] = []
        for stream in ready:
            events += self._told(stream)
        return [*events, *self._late()]

    def close(self) -> None:
        """Take back what was handed out and has not ended."""
        import ray

        # One that is thrown away late may outlive Ray.
        while self._running and ray.is_initialized():
            ray.cancel(self._running.popitem()[0], force=True)

    def _remote(self) -> Any:
        """Return the task, which Ray need not be told of anew each time."""
        unfit = ",".join(sorted(self._limits.unfit))
        if self._task is None or self._task[0] != (self._needs, unfit):
            task = remote_build(
                build_in_worker,
                self._needs,
                self._profile,
                num_returns="streaming",
                _generator_backpressure_num_objects=_MOST_UNTAKEN,
            )
            if unfit:
                selector = {"ray.io/node-id": f"!in({unfit})"}
                task = task.options(label_selector=selector)
            self._task = ((self._needs, unfit), task)
        return self._task[1]

    def _told(self, stream: Iterator[Any]) -> Iterator[BuildEvent]:
        running = self._running[stream]
        told = next_of(stream)
        if isinstance(told, Unfit):
            self._leave_out(told)
        elif isinstance(told, Begun):
            running.deadline = time.monotonic() + self._deadlines.build_s
            return
        elif not isinstance(told, Lost):
            yield from told
            running.done += len(told)
            running.deadline = time.monotonic() + self._deadlines.build_s
            if running.done < len(running.candidates):
                return
        del self._running[stream]
        if not running.left:
            yield Ended()
        elif isinstance(told, Lost):
            yield replace(told, candidates=running.left)
        else:
            yield Lost(running.left, blames=False)

    def _late(self) -> Iterator[BuildEvent]:
        import ray

        now = time.monotonic()
        late = [s for s, running in self._running.items() if now > running.deadline]
        for stream in late:
            ray.cancel(stream, force=True)
            left = self._running.pop(stream).left
            words = f"no result in {self._deadlines.build_s} s"
            yield Lost(left, Status.TIMEOUT, words)

    def _leave_out(self, told: Unfit) -> None:
        """Use a node no more.

        Raises:
            FlytuneError: it was the last one.
        """
        self._limits.unfit[told.node] = told.reason
        self._counted = -math.inf
        self._count_nodes()
        if not self._slots:
            refuse_full_disk(told.reason)
            raise FlytuneError(f"no node of the cluster can build: {told.reason}")

    def _count_nodes(self) -> None:
        """Look at the nodes, where it was not just done: batches are many."""
        import ray

        if time.monotonic() - self._counted > _NODES_S:
            # Without one Ray waits for minutes, and then ends this process.
            require_head()
            unfit = self._limits.unfit
            fit = [node for node in ray.nodes() if node.get("NodeID") not in unfit]
            self._slots, self._needs = builds_at_once(fit), build_needs(fit)
            self._counted = time.monotonic()


def remote_build(
    function: Callable[..., Any],
    needs: Mapping[str, Any],
    profile: DeviceProfile | None,
    **options: Any,
) -> Any:
    """Return a function that a worker of a build runs.

    Args:
        needs: As `build_needs`.
    """
    import ray

    remote = ray.remote(**needs, max_retries=0, **options)(function)
    if profile is None:
        return remote
    return remote.options(runtime_env={"env_vars": BLIND})


def builds_at_once(nodes: Sequence[Mapping[str, Any]]) -> int:
    """Return how many builds the cores and the memory of nodes allow at once.

    Args:
        nodes: As `ray.nodes` lists them.
    """
    bytes_each = build_needs(nodes).get("memory", 0)
    slots = 0
    for node in nodes:
        resources = node["Resources"] if node["Alive"] else {}
        cores = int(resources.get("CPU", 0))
        memory = resources.get("memory", 0)
        slots += min(cores, int(memory // bytes_each)) if bytes_each else cores
    return slots


def build_needs(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what Ray must have free on a node to start a build there.

    Args:
        nodes: As `ray.nodes` lists them.

    Memory is left out where no node with a core declares enough of it for a single
    build: an autoscaler may not know what its nodes will have.
    """
    able = [n["Resources"] for n in nodes if n["Alive"] and n["Resources"].get("CPU")]
    if max((one.get("memory", 0) for one in able), default=0) < _BUILD_BYTES:
        return {"num_cpus": 1}
    return {"num_cpus": 1, "memory": _BUILD_BYTES}


def next_of(stream: Iterator[Any]) -> Told | Lost:
    """Return what a task says next, or how it ended.

    Raises:
        FlytuneError: Ray failed, or a node lacks what it compiles with: no candidate's
            fault.
    """
    import ray

    try:
        told: Told = ray.get(next(stream))
    except ray.exceptions.OutOfMemoryError:
        return Lost((), Status.OUT_OF_MEMORY, "the worker ran out of memory")
    except ray.exceptions.WorkerCrashedError:
        return Lost((), Status.FAULT, "the compiling process died")
    except (ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError):
        return Lost((), blames=False)
    except ray.exceptions.RayTaskError as error:
        if "failed to import on the worker" in str(error):
            raise ray_failed("build", error) from error
        if isinstance(error.cause, FlytuneError):
            # No candidate's fault: a node lacks what it compiles with.
            raise error.cause from None
        status, reason = failure(error.cause, Status.FAULT)
        refuse_full_disk(reason)
        return Lost((), status, reason)
    except ray.exceptions.RayError as error:
        raise ray_failed("build", error) from error
    return told
