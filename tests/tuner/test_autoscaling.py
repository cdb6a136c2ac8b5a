"""A cluster that has no core until somebody wants one."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from fakes import library
from ray._private.services import get_node_ip_address
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID
from ray.cluster_utils import Cluster
from ray.exceptions import RpcError

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner import autoscaling
from flytune.tuner.autoscaling import may_grow
from flytune.tuner.deadlines import Deadlines
from flytune.tuner.workers import Farm

HEAD = "ray.head.default"
"""Ray's own name of its type, where nodes are processes of one host."""
NODE_TYPES = {
    HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
    "cores": {
        "resources": {"CPU": 2},
        "node_config": {},
        "min_workers": 0,
        "max_workers": 1,
    },
}


@pytest.mark.parametrize(
    ("types", "grows"),
    [
        ([], False),
        ([("a1", "node_a1"), ("b2", "node_b2")], False),
        ([("a1", "")], False),
        ([("a1", "node_a1"), ("a1", "head")], True),
        ([("a1", "headgroup")], True),
    ],
)
def test_an_autoscaler_has_types_of_nodes(
    types: list[tuple[str, str]], grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(autoscaling, "_node_types", lambda: iter(types))
    assert may_grow() == grows


@pytest.mark.parametrize("fault", [AttributeError("no such name"), RpcError("lost")])
def test_what_another_ray_tells_is_nothing(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other() -> Iterator[tuple[str, str]]:
        raise fault
        yield "", ""

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(autoscaling, "_node_types", other)
    assert not may_grow()


def config(address: str) -> dict[str, Any]:
    """Return what Ray's autoscaler starts nodes by, as processes of this host."""
    lists = (
        *("cluster_synced_files", "initialization_commands", "setup_commands"),
        *("head_setup_commands", "worker_setup_commands", "rsync_exclude"),
        *("head_start_ray_commands", "worker_start_ray_commands", "rsync_filter"),
    )
    return {
        "cluster_name": "autoscaled",
        "max_workers": 1,
        "idle_timeout_minutes": 5,
        "upscaling_speed": 1.0,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": address,
            # All have the address of this host, and nobody logs into them.
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "docker": {},
        "auth": {"ssh_user": "nobody"},
        "head_node_type": HEAD,
        "available_node_types": NODE_TYPES,
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{name: [] for name in lists},
    }


@pytest.fixture
def autoscaled() -> Iterator[str]:
    """A head without cores, and an autoscaler; its address."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    address = f"{get_node_ip_address()}:{port}"
    # Its name is short: below it lie Ray's sockets.
    with tempfile.TemporaryDirectory(
        prefix="ft", dir="/tmp", ignore_cleanup_errors=True
    ) as directory:
        path = Path(directory) / "autoscaling.json"
        path.write_text(json.dumps(config(address)))
        env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "disabled",
            "RAY_FAKE_CLUSTER": "1",
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            # A busy host starts it slowly.
            "RAY_raylet_start_wait_time_s": "120",
        }
        command = (
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head"),
            *("--block", "--temp-dir", directory, "--port", str(port)),
            *("--num-cpus", "0", f"--autoscaling-config={path}"),
            *("--include-dashboard", "false", "--disable-usage-stats"),
        )
        with (Path(directory) / "out").open("w") as out:
            process = subprocess.Popen(command, env=env, stdout=out, stderr=out)
        try:
            _wait_for(address, process)
            yield address
        finally:
            process.terminate()
            process.wait(timeout=60)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    host, _, port = address.partition(":")
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, "Ray has not started"
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    pytest.fail("Ray does not listen")


@pytest.mark.slow
def test_a_cluster_gets_its_first_core_for_a_build(autoscaled: str) -> None:
    said: list[str] = []
    with Farm(autoscaled, {}, Deadlines()) as farm:
        assert farm.capacity() == (0, 0)
        until = time.monotonic() + 60
        # Its first look at its nodes is not at once.
        while not may_grow():
            assert time.monotonic() < until
            time.sleep(1.0)
        results = [r for r in farm.build_all([library()], say=said.append) if r]
    assert [r.status for r in results] == [Status.OK]
    # A node that its autoscaler takes away again is waited for again.
    assert set(said) == {
        "build: no node of the Ray cluster has a core to build on: waiting for one, "
        "15 min 00 s at most"
    }


@pytest.mark.slow
def test_a_cluster_that_nobody_scales_is_refused() -> None:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        with Farm(made.address, {}, Deadlines()) as farm:
            assert not may_grow()
            with pytest.raises(FlytuneError, match=r"has a core to build on$"):
                list(farm.build_all([library()]))
    finally:
        made.shutdown()
