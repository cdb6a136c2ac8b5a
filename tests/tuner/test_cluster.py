import contextlib
import errno
import fcntl
import http.server
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import ray
from fakes import candidate, library, task
from ray import cloudpickle
from ray.cluster_utils import Cluster

from flytune.caches.columns import Status
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError
from flytune.tuner import cluster, nodes, ray_address
from flytune.tuner.candidate import ATEN, BuildResult, TuneTask
from flytune.tuner.cluster import own_cores
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.runner import Device
from flytune.tuner.timing import TimingPlan
from flytune.tuner.workers import Farm

DEVICE = Device("test", cache_bytes=2**16, rotation_bytes=2**20)
QUICK = TimingPlan(warm_up=1, rounds=9, max_rounds=9, min_sample_us=1.0)


def processes() -> set[int]:
    """Return what descends from this process and is no zombie."""
    own = psutil.Process().children(recursive=True)
    return {p.pid for p in own if p.is_running() and p.status() != "zombie"}


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for temporary files, of which nobody else has any here.

    Its name is short: below it lie Ray's sockets.
    """
    with tempfile.TemporaryDirectory(prefix="ft", dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def built(made: TuneTask) -> list[BuildResult]:
    return [BuildResult(c.choice_hash, Status.OK) for c in made.offered.candidates]


@pytest.mark.parametrize("fails", [False, True])
def test_a_local_ray_leaves_nothing_behind(
    fails: bool, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An address in the environment is not one that the user gave.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    before = processes()
    expected = pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext()
    with expected, Farm(None, {}, Deadlines()) as farm:
        made = task([library()])
        (runner,) = farm.runners(DEVICE, threads=2)
        (result,) = runner.run(made, built(made), QUICK)
        assert result.status is Status.OK
        (directory,) = temporary.glob("flytune-ray-*")
        assert list(directory.glob("session_*/flytune-*/worker-*"))
        assert processes() > before
        if fails:
            raise ZeroDivisionError
    assert list(temporary.glob("flytune-ray-*")) == []
    for _ in range(50):
        if processes() <= before:
            break
        time.sleep(0.1)
    assert processes() <= before
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def small_nodes() -> Iterator[str]:
    """A cluster of two nodes of one core on this host; its address."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made.address
    made.shutdown()


def test_a_joined_cluster_shares_the_work_and_is_left_clean(
    small_nodes: str, real_tasks: tuple[TuneTask, ...]
) -> None:
    chosen = [t for t in real_tasks if t.offered.op == "linear_unary"][:3]
    candidates = [c for t in chosen for c in t.offered.candidates if c.backend != ATEN]
    with Farm(small_nodes, {"OMP_NUM_THREADS": "1"}, Deadlines()) as farm:
        results = {r.choice_hash: r for r in farm.build_all(candidates) if r}
        assert {r.status for r in results.values()} == {Status.OK}
        sessions = [Path(n["RayletSocketName"]).parents[1] for n in ray.nodes()]
        used = {p for s in sessions for p in s.glob("flytune-*/worker-*")}
        assert len(used) == 2
        own, cores = own_cores(4)
        assert cores == 1  # as many as the node has
        assert own == ray.get_runtime_context().get_node_id()
        (runner,) = farm.runners(DEVICE, threads=2)
        for one in chosen:
            builds = [
                results.get(c.choice_hash, BuildResult(c.choice_hash, Status.OK))
                for c in one.offered.candidates
            ]
            for result in runner.run(one, builds, QUICK):
                assert (result.status, result.reason) == (Status.OK, "")
    assert [p for s in sessions for p in s.glob("flytune-*")] == []
    assert not ray.is_initialized()


def test_a_cluster_outlives_a_driver_that_fails(small_nodes: str) -> None:
    with pytest.raises(ZeroDivisionError), Farm(small_nodes, {}, Deadlines()):
        raise ZeroDivisionError
    with Farm(small_nodes, {}, Deadlines()) as farm:
        results = [r for r in farm.build_all([library()]) if r]
        assert [r.status for r in results] == [Status.OK]


def fills_disk(node: str) -> bytes:
    """Return Inductor's request of a candidate that finds a node's disk full.

    The class is in here so that it is pickled whole.
    """

    class FillsDisk:
        def precompile(self) -> None:
            if ray.get_runtime_context().get_node_id() == node:
                shutil.disk_usage = lambda _: SimpleNamespace(free=0)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return cloudpickle.dumps(FillsDisk())


def test_a_node_whose_disk_is_full_is_left_out(small_nodes: str) -> None:
    with Farm(small_nodes, {}, Deadlines()) as farm:
        head, other = (node["NodeID"] for node in ray.nodes())

        def full(node: str) -> list[BuildResult]:
            some = replace(candidate(""), request=fills_disk(node))
            made = [replace(some, choice_hash=str(number)) for number in range(6)]
            return [result for result in farm.build_all(made) if result]

        assert [r.status for r in full(other)] == [Status.OK] * 6
        with pytest.raises(FlytuneError, match="no space left for the workers' files"):
            full(head)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nothing listens, and that nobody else gets."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.mark.parametrize(
    "wrong",
    [
        "127.0.0.1:closed",
        "nohost.invalid:6379",
        "127.0.0.1:99999",
        "nonsense",
        "",
    ],
)
def test_a_wrong_address_is_one_clear_error(wrong: str, closed_port: int) -> None:
    address = wrong.replace("closed", str(closed_port))
    with pytest.raises(FlytuneError) as caught, Farm(address, {}, Deadlines()):
        pass
    assert str(caught.value).startswith(f"cannot reach Ray: {address}: ")
    assert "\n" not in str(caught.value)
    assert caught.value.hint == ("start it with `ray start --head`, or leave --ray out")
    assert not ray.is_initialized()


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "auto"])
def test_ray_client_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:10001")
    with pytest.raises(FlytuneError) as caught, Farm(address, {}, Deadlines()):
        pass
    assert str(caught.value) == (
        "cannot time on this host through Ray Client: ray://127.0.0.1:10001"
    )
    assert caught.value.hint == (
        "give it to --ray, and the build runs there; or host:port of one "
        "that this host is a node of"
    )


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("differs", "cannot build for this host: .*: software.torch: `0.1` there, `"),
        ("lacks it", "cannot run flytune: .*: ModuleNotFoundError: flytune"),
        ("hangs", "does not answer in 5 s: "),
    ],
)
def test_a_node_that_cannot_build_for_this_host_is_refused(
    small_nodes: str, how: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, real = os.getpid(), nodes.kernel_target(accelerator=False, flydsl=False)

    def target(accelerator: bool, flydsl: bool) -> Target:
        assert (accelerator, flydsl) == (False, False)
        if os.getpid() == driver:
            return real
        if how == "lacks it":
            raise ModuleNotFoundError("flytune")
        if how == "hangs":
            time.sleep(8.0)
        return replace(real, software={**real.software, "torch": "0.1"})

    monkeypatch.setattr(nodes, "kernel_target", target)
    if how == "hangs":
        monkeypatch.setattr(nodes, "NODE_S", 5.0)
    expected = pytest.raises(FlytuneError, match=f"^a node of the cluster {says}")
    with expected as caught, Farm(small_nodes, {}, Deadlines()):
        pass
    assert socket.gethostname() in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not ray.is_initialized()


def test_what_answers_but_is_no_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_address, "HEALTH_S", 8.0)
    handler = http.server.SimpleHTTPRequestHandler
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        with (
            pytest.raises(FlytuneError, match="what answers there is no healthy Ray"),
            Farm(address, {}, Deadlines()),
        ):
            pass
        server.shutdown()


def test_only_the_directories_of_dead_drivers_are_removed(tmp_path: Path) -> None:
    for name in ("dead", "young", "used", "unlocked"):
        directory = tmp_path / f"flytune-ray-{name}"
        (directory / "session").mkdir(parents=True)
        if name != "unlocked":
            lock = directory / "flytune.lock"
            lock.touch()
            os.utime(lock, (0, 0) if name != "young" else None)
    (tmp_path / "another").mkdir()
    with (tmp_path / "flytune-ray-used" / "flytune.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        cluster._remove_stale(tmp_path)
    assert sorted(
        path.name.removeprefix("flytune-ray-") for path in tmp_path.iterdir()
    ) == [
        "another",
        "unlocked",
        "used",
        "young",
    ]
