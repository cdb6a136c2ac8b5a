"""What a build survives: a Ray cluster of real processes whose parts are killed.

`python ci/bench/cluster_faults.py [--lists 500] [--kills 500]`

A build of LISTS x 20 candidates (chaos_driver.py) runs on a cluster of this host that
has three nodes with two cores and a made-up GPU each, twice: in peace, and while parts
of it die by SIGKILL: workers that compile, processes that time, raylets with all that
is theirs (another node joins), the driver, and the head with the whole cluster. Where
the driver has ended it is started again, as its hint says. The records of both must be
the same. Exits with 1 where they are not.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chaos_driver
import click
import psutil
from ray.cluster_utils import Cluster
from results import RESULTS, write_result

from flytune.caches.target import Target

NODES, CORES = 3, 2
WORKER, RUNNER = "ray::build_in_worker", "ray::_RunnerActor"
# Of so many kills, one is of a process that times, a raylet, the driver, the head.
EVERY = {"runner": 10, "raylet": 50, "driver": 125, "head": 250}
LIMIT_S = 3600.0
Row = dict[str, Any]


class Chaos:
    """A cluster, a driver on it, and what kills them."""

    def __init__(
        self, work: Path, lists: int, seconds: float, every: Mapping[str, int] = EVERY
    ) -> None:
        self.work = work
        self.kills: Counter[str] = Counter()
        """How many there were, by what was killed."""
        self._lists, self._seconds, self._every = lists, seconds, every
        self._cluster = start_cluster()
        self._driver: subprocess.Popen[bytes] | None = None
        self.starts = 0
        """Of the driver."""

    def close(self) -> None:
        """End the driver and the cluster."""
        if self._driver is not None:
            self._driver.kill()
            self._driver.wait()
        self._cluster.shutdown()

    def is_done(self) -> bool:
        """Start the driver where it has ended; return whether it has ended well."""
        if self._driver is not None and (code := self._driver.poll()) is not None:
            if code == 0:
                return True
            self._driver = None
        if self._driver is None:
            self.starts += 1
            address = self._cluster.address
            self._driver = start_driver(address, self.work, self._lists, self._seconds)
        return False

    def kill(self, dice: random.Random) -> bool:
        """Kill one part; return whether there was one."""
        number = self.kills.total() + 1
        due = [what for what, every in self._every.items() if number % every == 0]
        what = due[-1] if due else "worker"
        if not getattr(self, f"_kill_{what}")(dice):
            return False
        self.kills[what] += 1
        return True

    def _kill_worker(self, dice: random.Random) -> bool:
        return _kill_one(_named(WORKER), dice)

    def _kill_runner(self, dice: random.Random) -> bool:
        return _kill_one(_named(RUNNER), dice)

    def _kill_raylet(self, dice: random.Random) -> bool:
        """Kill a whole node, and let another one join."""
        node = dice.choice(sorted(self._cluster.worker_nodes, key=id))
        self._cluster.remove_node(node, allow_graceful=False)
        self._cluster.add_node(num_cpus=CORES, num_gpus=1)
        return True

    def _kill_driver(self, _: random.Random) -> bool:
        if self._driver is None or self._driver.poll() is not None:
            return False
        self._driver.send_signal(signal.SIGKILL)
        self._driver.wait()
        return True

    def _kill_head(self, _: random.Random) -> bool:
        """Kill the head, wait for the driver to say so, and start a cluster anew."""
        self._cluster.head_node.kill_gcs_server(check_alive=False)
        if self._driver is not None:
            self._driver.wait(timeout=LIMIT_S)
        self._cluster.shutdown()
        self._cluster = start_cluster()
        return True


def start_cluster() -> Any:
    """Start a head, and nodes that compile and time."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(NODES):
        cluster.add_node(num_cpus=CORES, num_gpus=1)
    cluster.wait_for_nodes()
    return cluster


def start_driver(
    address: str, work: Path, lists: int, seconds: float
) -> subprocess.Popen[bytes]:
    """Start a build on a cluster; what it says is in `driver.log`."""
    words = [chaos_driver.__file__, address, str(work), str(lists), str(seconds)]
    work.mkdir(parents=True, exist_ok=True)
    with (work / "driver.log").open("ab") as log:
        return subprocess.Popen([sys.executable, *words], stderr=log, stdout=log)


def _named(title: str) -> list[psutil.Process]:
    """Return the processes of this cluster with a title."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith(title):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _kill_one(processes: Sequence[psutil.Process], dice: random.Random) -> bool:
    if not processes:
        return False
    chosen = dice.choice(sorted(processes, key=lambda process: process.pid))
    try:
        os.kill(chosen.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def run(
    work: Path,
    lists: int,
    seconds: float,
    kills: int,
    *,
    pause_s: float = 0.5,
    seed: int = 0,
    every: Mapping[str, int] = EVERY,
) -> Row:
    """Build to the end, with so many kills on the way; return what it took."""
    dice = random.Random(seed)
    chaos = Chaos(work, lists, seconds, every)
    start = time.monotonic()
    try:
        while not chaos.is_done():
            if time.monotonic() - start > LIMIT_S:
                raise click.ClickException(f"not done in {LIMIT_S:g} s")
            if chaos.kills.total() < kills:
                chaos.kill(dice)
            time.sleep(pause_s)
    finally:
        chaos.close()
    compiled = (work / chaos_driver.COMPILED).read_text().splitlines()
    timed = (work / chaos_driver.TIMED).read_text().splitlines()
    return {
        "took_s": round(time.monotonic() - start, 1),
        "kills": dict(chaos.kills),
        "drivers": chaos.starts,
        "compilations": len(compiled),
        "compiled_again": len(compiled) - len(set(compiled)),
        "timed_again": len(timed) - len(set(timed)),
    }


def records(work: Path) -> list[Any]:
    """Return what a build has decided."""
    found: list[Any] = json.loads((work / chaos_driver.RECORDS).read_text())
    return found


@click.command()
@click.option("--lists", default=500, show_default=True, help="Of 20 candidates each.")
@click.option("--seconds", default=0.05, show_default=True, help="Of a compilation.")
@click.option("--kills", default=500, show_default=True)
@click.option("--pause", default=0.5, show_default=True, help="Seconds between kills.")
def main(lists: int, seconds: float, kills: int, pause: float) -> None:
    """Build in peace and in chaos, compare, and write the result file."""
    with tempfile.TemporaryDirectory(prefix="flytune-bench-") as folder:
        peace, chaos = Path(folder) / "peace", Path(folder) / "chaos"
        rows = [{"faults": "none", **run(peace, lists, seconds, 0)}]
        rows.append(
            {"faults": "kills", **run(chaos, lists, seconds, kills, pause_s=pause)}
        )
        expected, found = records(peace), records(chaos)
    differ = sum(one != other for one, other in zip(expected, found, strict=True))
    for row in rows:
        print(row)
    print(f"{len(found)} records, {differ} unlike those of a build in peace")
    figures = {"records": len(found), "differ": differ, **rows[1]}
    slug = Target.here(threads=1).slug
    print(f"wrote {write_result('cluster_faults', slug, figures, rows, RESULTS)}")
    if differ:
        raise click.ClickException("the records differ")


if __name__ == "__main__":
    main()
