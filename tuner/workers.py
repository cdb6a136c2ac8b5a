"""The Ray workers of a build: a task a batch of compilations, an actor a device."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flytune.caches.device_profile import DeviceProfile, live_profile
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError
from flytune.tuner.batches import build_batches
from flytune.tuner.build_worker import import_in_worker
from flytune.tuner.candidate import BuildResult, Candidate
from flytune.tuner.cluster import WORKER_ENV, joined, require_head
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.device_process import MakeRunner, local_runner
from flytune.tuner.nodes import NODE_S, kernel_target
from flytune.tuner.placement import AskedNodes, Tell, device_nodes, gpu_counts
from flytune.tuner.ray_builders import (
    Limits,
    RayBuilders,
    build_needs,
    builds_at_once,
    remote_build,
)
from flytune.tuner.remote_runner import RemoteRunner
from flytune.tuner.runner import Device

# Few builds have more to compile in their first seconds.
_MOST_WARM = 32
# Nodes that have joined are looked for so often.
_LOOK_S = 2.0


class Farm:
    """A Ray cluster that was joined, or a local one that ends with this context."""

    def __init__(
        self,
        address: str | None,
        env: Mapping[str, str],
        deadlines: Deadlines,
        profile: DeviceProfile | None = None,
        *,
        flydsl: bool = False,
        make_runner: MakeRunner = local_runner,
        tell: Tell = live_profile,
    ) -> None:
        """Join when this context is entered.

        Args:
            address: Of a running cluster; None starts one on this host.
            env: What every worker's environment holds.
            deadlines: How long to wait for a worker.
            profile: Of the accelerator that is built for; None for the CPU.
            flydsl: Whether FlyDSL makes some of its kernels.
            make_runner: Makes what times, in a device's process.
            tell: Says which accelerator a node has, there.
        """
        self._make_runner = make_runner
        self._address, self._flydsl = address, flydsl
        self._deadlines, self._profile = deadlines, profile
        self._session = joined(
            address,
            {**env, **WORKER_ENV},
            accelerator=profile is not None,
            flydsl=flydsl,
        )
        self._limits = Limits()
        self._runners: list[RemoteRunner] = []
        self._asked = AskedNodes(tell)
        self._device_nodes: set[str] = set()
        """Nodes whose devices have runners, by Ray's name."""
        self._looked = self._had_device = -math.inf
        self.devices = 0
        """Accelerators of the cluster when they were last looked for."""

    def __enter__(self) -> "Farm":
        self._session.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._session.__exit__(*exception)

    def capacity(self) -> tuple[int, int]:
        """Return how many builds run at once, and on how many GPUs is timed."""
        import ray

        gpus = 0 if self._profile is None else sum(self._gpus().values())
        return builds_at_once(ray.nodes()), gpus

    def warm(self) -> list[Any]:
        """Let workers import what compiling takes; return before they have.

        Returns:
            What `ray.get` waits for them by.
        """
        import ray

        nodes = ray.nodes()
        remote = remote_build(import_in_worker, build_needs(nodes), self._profile)
        count = min(builds_at_once(nodes), _MOST_WARM)
        return [remote.remote(self._profile) for _ in range(count)]

    def build_all(
        self,
        candidates: Sequence[Candidate],
        stopped: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda _: None,
    ) -> Iterator[BuildResult | None]:
        """Build every candidate; results come as they end, one each.

        None comes in between, about once a second, so that the caller can do other
        things too. As many run at once as the cluster has cores and memory. A worker
        that dies or outlasts the deadline gives a result that says so, unless somebody
        kills workers.

        Args:
            stopped: Whether nothing new is to be begun any more.
            say: Told that a node is waited for.

        Raises:
            FlytuneError: Ray itself fails or has no cores, or every disk is full.
        """
        builders = RayBuilders(
            self._profile, self._deadlines, self._limits, self._expected, say
        )
        return build_batches(candidates, builders, stopped)

    @functools.cached_property
    def _expected(self) -> Target | None:
        """Return what nodes must make kernels with; None where this is the only one."""
        if self._address is None:
            return None
        return kernel_target(accelerator=self._profile is not None, flydsl=self._flydsl)

    def throttle(self) -> int:
        """Build half as many at once from now on; return how many that is."""
        import ray

        slots = builds_at_once(ray.nodes())
        most = max(1, int(min(slots, self._limits.most)) // 2)
        self._limits.most = most
        return most

    def runners(self, device: Device, threads: int) -> tuple[RemoteRunner, ...]:
        """Return a handle for each device's actor, started at its first use.

        Raises:
            FlytuneError: the cluster has no such device.
        """
        if device.kind == "cpu":
            return self._made([self._runner(device, threads)])
        made = self.joined_runners(device, threads)
        while not made and self._had_device > -math.inf:
            # Between two lists all may be away for a while.
            time.sleep(_LOOK_S)
            made = self.joined_runners(device, threads)
        if not made:
            others = "; ".join(sorted(set(self._asked.unfit.values())))
            raise FlytuneError(
                f"no node of the Ray cluster has a device: {device.name}"
                + (f": {others}" if others else ""),
                hint="start Ray where it sees one, or leave --ray out",
            )
        return made

    def joined_runners(self, device: Device, threads: int) -> tuple[RemoteRunner, ...]:
        """Return a handle for each accelerator that has come since it was last asked.

        A node that has left and comes again is another one.

        Raises:
            FlytuneError: there is none any more, and was none for long.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return ()
        self._looked = now
        require_head()
        gpus = self._gpus()
        self.devices = sum(gpus.values())
        if gpus:
            self._had_device = now
        elif self._deadlines.absent_s < now - self._had_device < math.inf:
            raise FlytuneError(
                "the Ray cluster has had no device to time on for "
                f"{self._deadlines.absent_s:g} s",
                hint="the same command goes on from here once it has one",
            )
        new = [node for node in gpus if node not in self._device_nodes]
        self._device_nodes.update(new)
        return self._made(
            [
                self._runner(device, threads, node)
                for node in new
                for _ in range(gpus[node])
            ]
        )

    def _gpus(self) -> Mapping[str, int]:
        """Return how many devices of the target each node has, by Ray's name of it."""
        import ray

        if self._address is None or self._profile is None:
            # What this host has is known since the build was planned.
            return gpu_counts(ray.nodes())
        # All are waited for at first; one that joins is not, while others time.
        wait_s = NODE_S if self._had_device == -math.inf else 0.0
        return dict(device_nodes(self._profile, self._asked, wait_s))

    def _runner(
        self, device: Device, threads: int, node: str | None = None
    ) -> RemoteRunner:
        given = (device, threads, self._deadlines, node, self._make_runner)
        # A CPU times on this very host.
        expected = None if node is None else self._expected
        return RemoteRunner(*given, expected)

    def _made(self, runners: Sequence[RemoteRunner]) -> tuple[RemoteRunner, ...]:
        self._runners += runners
        return tuple(runners)

    def stop_runners(self) -> None:
        """End every device's actor: the next build of a fleet needs what they hold."""
        while self._runners:
            self._runners.pop().stop()
        self._device_nodes.clear()
        self._looked = -math.inf
