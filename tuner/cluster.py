"""Join a Ray cluster, or start one on this host; either is left as it was found."""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flytune.caches.child import FOREIGN
from flytune.shapes.errors import FlytuneError
from flytune.tuner.nodes import check_nodes, last_line, there_only
from flytune.tuner.ray_address import (
    CONNECT_S,
    HEALTH_S,
    check_address,
    check_health,
    host_and_port,
    unreachable,
)

# Less than the minute after which Ray ends a driver whose head is gone.
_HEAD_S = 20.0
# Ray's sockets lie below its directory, and their paths hold 107 characters at most.
_LONGEST_TEMPORARY = 20
_PREFIX = "flytune-ray-"
WORKER_ENV = {
    # The candidates were listed under this instruction set: building needs no probe.
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "HF_HUB_OFFLINE": "1",
}
MODULES = "FLYTUNE_RAY_MODULES"
"""A variable: what workers import flytune from, where it was sent to the cluster."""
_LOCK = "flytune.lock"
# A directory this young may not have been locked yet.
_YOUNG_S = 60.0
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Of a disk without space."""
_FULL = tuple(map(os.strerror, FULL))
# Less than a compilation's own temporary files take.
_LEAST_FREE_BYTES = 32 * 2**20


@contextlib.contextmanager
def joined(
    address: str | None, env: Mapping[str, str], *, accelerator: bool, flydsl: bool
) -> Iterator[None]:
    """Be Ray's driver for a while, with `env` in every worker.

    Args:
        address: Of a running cluster; None starts one that ends with the context.
        env: Environment variables.
        accelerator: Whether kernels are built for one, and not for this host's CPU.
        flydsl: Whether FlyDSL makes some of them.

    Raises:
        FlytuneError: there is no Ray at that address, or none can be started, or a
            node of it cannot build for this host.
    """
    # Ray's own usage report and its dashboard have no place in a build.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # A thread that outlives the session must not start another Ray by asking it.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    if address is not None:
        check_address(address)
        check_health(address)
        with _session(address, env):
            check_nodes(accelerator=accelerator, flydsl=flydsl)
            try:
                yield
            finally:
                with contextlib.suppress(FlytuneError):
                    require_head(patience_s=0.0)
                    _remove_worker_directories()
        return
    # "local": a RAY_ADDRESS in the environment is not what was asked for.
    with (
        _local_directory() as directory,
        _session(
            "local",
            env,
            include_dashboard=False,
            num_cpus=_own_cores(),
            _temp_dir=str(directory),
        ),
    ):
        yield


def _own_cores() -> int | None:
    """Return how many cores this process is held to; None: what Ray finds.

    Ray heeds a container's quota, and not the cores that a process may run on.
    """
    allowed = len(os.sched_getaffinity(0))
    return allowed if allowed < (os.cpu_count() or allowed) else None


@contextlib.contextmanager
def _local_directory() -> Iterator[Path]:
    """Make a directory for a local Ray, locked while it is in use."""
    usual = tempfile.gettempdir()
    root = Path(usual if len(usual) <= _LONGEST_TEMPORARY else "/tmp")
    _remove_stale(root)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    try:
        with (directory / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield directory
    finally:
        _remove(directory)


def _remove_stale(root: Path) -> None:
    """Remove what drivers left that were killed: nobody holds its lock any more."""
    for lock_path in root.glob(f"{_PREFIX}*/{_LOCK}"):
        # Another user's, or gone meanwhile, or in use: not ours to remove.
        with contextlib.suppress(OSError), lock_path.open("r+") as lock:
            if time.time() - lock_path.stat().st_mtime > _YOUNG_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(lock_path.parent)


@contextlib.contextmanager
def _session(address: str, env: Mapping[str, str], **more: Any) -> Iterator[None]:
    import ray

    # Ray prints the death of a worker on stdout, whatever `log_to_driver` says.
    ray._private.worker._worker_logs_enabled = False
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": dict(env), **_sent_modules()},
            **more,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise unreachable(address, str(error).partition("\n")[0]) from error
    try:
        yield
    finally:
        ray.shutdown()


def _sent_modules() -> dict[str, list[str]]:
    modules = os.environ.get(MODULES, "").split()
    return {"py_modules": modules} if modules else {}


def require_head(patience_s: float = _HEAD_S) -> None:
    """Refuse to go on without the cluster's head, which Ray would wait for in vain.

    Args:
        patience_s: How long one is waited for that is started again.

    Raises:
        FlytuneError: nothing answers at its address.
    """
    import ray

    if not ray.is_initialized():
        return
    address = ray.get_runtime_context().gcs_address
    host, port = host_and_port(address)
    until = time.monotonic() + patience_s
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except OSError as error:
            if time.monotonic() > until:
                raise FlytuneError(
                    f"lost the head of the Ray cluster: {address}: {error.strerror}",
                    hint="the same command goes on from here once it is back",
                ) from error
            time.sleep(1.0)
        else:
            return


def ray_failed(what: str, error: Exception) -> FlytuneError:
    """Return the error of a build that Ray, and no candidate, has failed."""
    return FlytuneError(
        f"Ray cannot {what} here: {type(error).__name__}: {last_line(error)}",
        hint="look at the cluster's nodes with `ray status`",
    )


def full_disk() -> str:
    """Say which directory of this worker process has no space left, if one has none."""
    for place in (os.environ["TORCHINDUCTOR_CACHE_DIR"], tempfile.gettempdir()):
        if shutil.disk_usage(place).free < _LEAST_FREE_BYTES:
            return f"{_FULL[0]}: {place}"
    return ""


def refuse_full_disk(reason: str) -> None:
    """End the build where a candidate's reason is a full disk, not its own fault.

    Raises:
        FlytuneError: it is.
    """
    if any(words in reason for words in _FULL):
        raise FlytuneError(
            f"no space left for the workers' files: {reason}",
            hint="free some in the temporary directory of every node",
        )


def own_cache_directory() -> None:
    """Give this worker process an Inductor directory that it shares with nobody.

    The driver removes it at its end.
    """
    if os.environ.get("FLYTUNE_WORKER") != str(os.getpid()):
        root = _directory_of_job()
        root.mkdir(parents=True, exist_ok=True)
        directory = tempfile.mkdtemp(prefix="worker-", dir=root)
        # What the driver's shell set would lead kernels elsewhere, or change them.
        for name in [name for name in os.environ if name.startswith(FOREIGN)]:
            if name not in WORKER_ENV:
                del os.environ[name]
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = directory
        os.environ["FLYTUNE_WORKER"] = str(os.getpid())


def _directory_of_job() -> Path:
    import ray

    node = ray._private.worker.global_worker.node
    job = ray.get_runtime_context().get_job_id()
    return Path(node.get_session_dir_path()) / f"flytune-{job}"


def _remove_worker_directories() -> None:
    """Remove on every node of a joined cluster what this driver's workers left."""
    import ray

    remote = ray.remote(num_cpus=0, max_retries=0)(_remove_own)
    removals = [
        remote.options(scheduling_strategy=there_only(node["NodeID"])).remote()
        for node in ray.nodes()
        if node["Alive"]
    ]
    # A node that has died meanwhile has nothing to remove.
    with contextlib.suppress(ray.exceptions.RayError):
        ray.get(removals, timeout=HEALTH_S)


def _remove_own() -> None:
    _remove(_directory_of_job())


def _remove(directory: Path) -> None:
    """Remove a directory in which dying processes may still write for a moment."""
    for _ in range(50):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.1)


def own_cores(wanted: int) -> tuple[str, int]:
    """Return (node, cores) for work on this very host: as many as its node has."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == own)
    return own, min(wanted, int(node["Resources"].get("CPU", 0)))
