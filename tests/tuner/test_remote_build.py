"""A build on a cluster that this host is no node of: Ray's own head, and its errors."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from builds import COMMAND, DATA, environment, flytune, strays
from ray._private.utils import check_version_info
from ray.exceptions import (
    GetTimeoutError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from flytune.caches.bundle import Bundle, writing
from flytune.caches.keyring import own_key
from flytune.caches.trust import HERE, admit
from flytune.shapes.errors import FlytuneError
from flytune.tuner import build_place
from flytune.tuner.budget import Meter
from flytune.tuner.build_place import NoNodeError, Wish
from flytune.tuner.cluster_build import Request
from flytune.tuner.remote_build import (
    RemoteBuild,
    _begin,
    _losing,
    _not_joined,
    _stop,
    _use_token,
    is_remote,
)

MODEL = DATA / "square-llama.json"
BUILD = (
    *("build", "--model", str(MODEL), "--tokens", "64", "--target", "h200"),
    *("--compile-only", "--threads", "2"),
)
# Ray itself tries for half a minute.
IMPATIENT = (
    "import ray.util.client.worker as w; w.INITIAL_TIMEOUT_SEC = 0.2; "
    "w.backoff = lambda timeout: timeout; "
    "from flytune.tuner.cli import main; main()"
)
OTHER_RAY = (
    # Ray reads it when it is imported.
    "from flytune.tuner.remote_build import _use_token; _use_token(); "
    "import ray; ray.__version__ = '2.50.0'; from flytune.tuner.cli import main; main()"
)


def free_port() -> int:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        return port


def test_jobs_are_refused_with_the_way_to_go() -> None:
    with pytest.raises(FlytuneError) as caught:
        is_remote("http://head:8265")
    assert str(caught.value) == (
        "builds go through Ray Client, and not by jobs: http://head:8265"
    )
    assert caught.value.hint == (
        "give ray://HEAD:10001, or submit `flytune build --ray auto` with "
        "`ray job submit`"
    )
    assert [is_remote(one) for one in (None, "auto", "head:6379")] == [False] * 3


def test_nothing_that_listens_is_one_line(tmp_path: Path) -> None:
    address = f"ray://127.0.0.1:{free_port()}"
    done = flytune(tmp_path, *BUILD, "--out", tmp_path / "b.tar.zst", "--ray", address)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        f"error: cannot reach Ray: {address}: [Errno 111] Connection refused",
        "hint: start it with `ray start --head`, or leave --ray out",
    ]


def test_what_listens_and_is_no_ray_is_one_line(tmp_path: Path) -> None:
    handler = http.server.SimpleHTTPRequestHandler
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"ray://127.0.0.1:{server.server_port}"
        command = (sys.executable, "-c", IMPATIENT)
        done = flytune(tmp_path, *BUILD, "--ray", address, command=command)
        server.shutdown()
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error == (
        f"error: cannot build there: {address}: what listens there does not answer as "
        "Ray Client does"
    )
    assert "~/.ray/auth_token" in hint


@pytest.mark.parametrize(
    ("ray_version", "python"), [("2.50.0", "3.11.9"), ("2.60.0", "3.9.1")]
)
def test_other_versions_there_are_one_line(ray_version: str, python: str) -> None:
    there = {"ray_version": ray_version, "python_version": python}
    with pytest.raises(RuntimeError) as caught:
        check_version_info(there, "Ray Client", python_version_match_level="minor")
    error = _not_joined("ray://head:10001", caught.value)
    assert "\n" not in str(error)
    assert f"was started with: Ray: {ray_version} Python: {python}" in str(error)
    assert error.hint == "use the cluster's versions of Ray and Python here"


def test_what_is_lost_on_the_way_is_one_line_and_found_again() -> None:
    with pytest.raises(FlytuneError) as caught, _losing("ray://head:10001"):
        raise ConnectionError("GRPC connection failed")
    assert str(caught.value) == (
        "lost the build: ray://head:10001: ConnectionError: GRPC connection failed"
    )
    assert caught.value.hint == (
        "the same command finds it again, or goes on from where it was"
    )


def test_what_is_lost_while_a_file_is_written_is_no_disks(tmp_path: Path) -> None:
    with (
        pytest.raises(FlytuneError, match=r"^lost the build: "),
        _losing("ray://head:10001"),
        writing(tmp_path / "b.tar.zst", output=True),
    ):
        raise ConnectionError("GRPC connection failed")


class SecondHasNoNode:
    """What stands for Ray: of two builds the second has nowhere to be."""

    def __init__(self) -> None:
        self.stopped: list[str] = []
        self.exceptions = ray.exceptions
        self._begun: list[str] = []

    def remote(self, **_: object) -> Any:
        return lambda _: SimpleNamespace(remote=lambda request, *_: request)

    def get(self, asked: Any, timeout: float = 0.0) -> Any:
        if isinstance(asked, Request):
            if self._begun:
                raise RayTaskError("begin", "", FlytuneError("no node has this"))
            self._begun.append(asked.actor)
            return True
        return asked

    def get_actor(self, name: str, _: str) -> Any:
        if name not in self._begun:
            raise ValueError(name)
        said = SimpleNamespace(remote=lambda *_: ([], 1))
        stop = SimpleNamespace(remote=lambda: None)
        return SimpleNamespace(name=name, stop=stop, said=said)

    def kill(self, actor: Any) -> None:
        self.stopped.append(actor.name)


def test_a_build_of_which_nobody_would_know_is_stopped(tmp_path: Path) -> None:
    builds = [
        RemoteBuild(Request(name, ()), Wish(), lambda _: tmp_path) for name in "ab"
    ]
    cluster = SecondHasNoNode()
    with pytest.raises(RayTaskError):
        _begin(cluster, builds, Meter())
    assert cluster.stopped == [builds[0].request.actor]


class Begins(SecondHasNoNode):
    """Every build begins, which takes a minute."""

    now = 5.0

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Request] = []

    def get(self, asked: Any, timeout: float = 0.0) -> Any:
        self.asked.append(asked)
        self._begun.append(asked.actor)
        self.now += 60
        return True


def test_several_builds_have_one_budget_whenever_each_begins(tmp_path: Path) -> None:
    cluster = Begins()
    meter = Meter(lambda: cluster.now)
    cluster.now += 10
    builds = [
        RemoteBuild(Request(name, ()), Wish(), lambda _: tmp_path) for name in "ab"
    ]
    _begin(cluster, builds, meter)
    assert [request.passed_s for request in cluster.asked] == [10, 70]
    # By another name it would be another build.
    assert [request.actor for request in cluster.asked] == [
        build.request.actor for build in builds
    ]


class GrowsForWhatWaits(SecondHasNoNode):
    """Has a node for a build once something waits for one."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[dict[str, object]] = []
        self.cancelled = 0

    def remote(self, **needs: object) -> Any:
        def ask(*given: Any) -> Any:
            if not given:
                self.waits.append(needs)
            return given[0] if given else self

        return lambda _: SimpleNamespace(remote=ask)

    def get(self, asked: Any, timeout: float = 0.0) -> Any:
        if not self.waits:
            return NoNodeError("no node of the Ray cluster has an accelerator")
        self._begun.append(asked.actor)
        return True

    def cancel(self, asked: object) -> None:
        assert asked is self
        self.cancelled += 1


def test_a_build_waits_for_a_node_that_may_come(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(build_place, "_LOOK_S", 0.0)
    cluster = GrowsForWhatWaits()
    monkeypatch.setattr(ray, "remote", cluster.remote)
    monkeypatch.setattr(ray, "cancel", cluster.cancel)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    wish = Wish(device="cuda")
    build = RemoteBuild(Request("a", ()), wish, lambda _: tmp_path, prefix="h200: ")
    _begin(cluster, [build], Meter())
    assert build.actor is not None
    assert cluster.waits == [{"num_gpus": 1, "max_retries": 0}]
    assert cluster.cancelled == 1
    assert capsys.readouterr().err == (
        "h200: no node of the Ray cluster has an accelerator: waiting for one, "
        "15 min 00 s at most\n"
    )
    # None has come.
    never = GrowsForWhatWaits()
    never.get = lambda *_, **__: NoNodeError("no node")  # type: ignore[method-assign]
    monkeypatch.setattr(ray, "remote", never.remote)
    monkeypatch.setattr(ray, "cancel", never.cancel)
    monkeypatch.setattr(
        build_place, "Deadlines", lambda: SimpleNamespace(absent_s=-1.0)
    )
    build = RemoteBuild(Request("b", ()), wish, lambda _: tmp_path)
    with pytest.raises(NoNodeError):
        _begin(never, [build], Meter())
    assert never.cancelled == 1


class SlowToBegin(SecondHasNoNode):
    """Its actor is there, and whoever has made it cannot say so."""

    def __init__(self, fault: Exception) -> None:
        super().__init__()
        self._fault = fault
        self.cancelled: list[str] = []

    def get(self, asked: Any, timeout: float = 0.0) -> Any:
        if isinstance(asked, Request):
            self._begun = [asked.actor]
            raise TaskCancelledError if self.cancelled else self._fault
        return asked

    def cancel(self, asked: Request) -> None:
        self.cancelled.append(asked.actor)


def test_a_build_that_begins_while_others_are_stopped_is_stopped_too(
    tmp_path: Path,
) -> None:
    request = Request("a", ())
    cluster = SlowToBegin(GetTimeoutError())
    build = RemoteBuild(request, Wish(), lambda _: tmp_path, beginning=request)
    _stop(cluster, [build])
    assert (cluster.cancelled, cluster.stopped) == ([request.actor], [request.actor])


def test_a_build_whose_beginning_is_lost_is_stopped(tmp_path: Path) -> None:
    cluster = SlowToBegin(WorkerCrashedError())
    build = RemoteBuild(Request("a", ()), Wish(), lambda _: tmp_path)
    with pytest.raises(WorkerCrashedError):
        _begin(cluster, [build], Meter())
    assert cluster.stopped == [build.request.actor]


def test_a_fault_there_is_the_same_fault_here() -> None:
    fault = FlytuneError("no node has this", hint="start one")
    with pytest.raises(FlytuneError) as caught, _losing("ray://head:10001"):
        raise RayTaskError("begin", "a traceback", fault)
    assert (str(caught.value), caught.value.hint) == ("no node has this", "start one")


def test_an_output_that_exists_is_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    (tmp_path / "b.tar.zst").touch()
    words = ("--out", tmp_path / "b.tar.zst", "--ray", "ray://127.0.0.1:1")
    done = flytune(tmp_path, *BUILD, *words)
    assert done.stderr.startswith("error: output exists: ")


@pytest.mark.parametrize(
    ("made", "given", "mode"),
    [(False, None, None), (True, None, "token"), (True, "disabled", "disabled")],
)
def test_a_token_is_shown_where_ray_keeps_one(
    made: bool,
    given: str | None,
    mode: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    if made:
        (tmp_path / "token").write_text("x" * 64)
    if given is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", given)
    # What it sets ends with the test.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    _use_token()
    assert os.environ.get("RAY_AUTH_MODE") == mode


@dataclass(frozen=True, slots=True)
class Head:
    """A cluster of one node that `ray start` made."""

    address: str
    home: Path
    """`FLYTUNE_HOME` of its processes."""


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    port, client = free_port(), free_port()
    # Its name is short: below it lie Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="ft", dir="/tmp") as directory:
        home = Path(directory) / "home"
        # It has no flytune of its own, no keys, and another working directory.
        env = {k: v for k, v in environment(home).items() if k != "PYTHONPATH"}
        # A busy host starts it slowly.
        env["RAY_raylet_start_wait_time_s"] = "120"
        env["FLYTUNE_KEYS"] = str(home / "keys")
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        command = (
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head"),
            *("--block", "--temp-dir", directory, "--port", str(port)),
            *("--ray-client-server-port", str(client), "--num-cpus", "2"),
            *("--include-dashboard", "false", "--disable-usage-stats"),
        )
        with subprocess.Popen(
            command,
            env=env,
            cwd=directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                _wait_for(client, process)
                yield Head(f"ray://127.0.0.1:{client}", home)
            finally:
                process.terminate()
                process.wait(timeout=60)
        strays(home)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, "Ray has not started"
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    pytest.fail("Ray Client does not listen")


def begin(home: Path, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
        start_new_session=True,
        # A shell's background job, which this may be, ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def until_line(process: subprocess.Popen[str], words: str) -> list[str]:
    """Return the lines of a process up to the one that has some words."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError("".join(lines))


@pytest.mark.slow
def test_a_build_goes_on_there_is_stopped_from_here_and_comes_home(
    head: Head, tmp_path: Path
) -> None:
    out = tmp_path / "out" / "b.tar.zst"
    out.parent.mkdir()
    words = (*BUILD, "--out", out, "--ray", head.address)
    command = (sys.executable, "-c", OTHER_RAY)
    done = flytune(tmp_path / "home", *words, command=command)
    assert done.returncode == 1
    assert "This process on Ray Client was started with: Ray: 2.50.0" in done.stderr

    # Killed here, it goes on there, and the same command finds it.
    with begin(tmp_path / "home", *words) as process:
        until_line(process, "enumerate: lowering")
        process.kill()
    with begin(tmp_path / "home", *words) as process:
        lines = until_line(process, "enumerate: lowering")
        assert lines[0] == "goes on from an earlier command\n"
        assert "plan: square-llama" in lines[1]
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=120)
    assert process.returncode == 130
    assert rest.splitlines() == [
        "stopping the build there",
        "error: stopped: the same command goes on from here",
    ]
    assert list(out.parent.iterdir()) == []
    assert list((head.home / "sent").iterdir())

    done = flytune(tmp_path / "home", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"bundle  {out}\n")
    assert f"kept in {head.home}/work/square-llama-" in done.stderr
    bundle = Bundle.open(out)
    bundle.check()
    # Signed here, by this user's key; there is none there.
    admit(bundle, HERE)
    assert bundle.envelope is not None
    assert own_key() is not None
    assert not (head.home / "keys").exists()
    assert list((head.home / "sent").iterdir()) == []
    assert [path.name for path in out.parent.iterdir()] == ["b.tar.zst"]
    # What was compiled is there still: another bundle of it compiles nothing.
    more = (*BUILD, "--out", tmp_path / "again", "--ray", head.address)
    done = flytune(tmp_path / "home", *more)
    assert done.returncode == 0, done.stderr
    assert "] build: " not in done.stderr
    Bundle.open(tmp_path / "again").check()
