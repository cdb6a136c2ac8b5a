"""A build on a Ray cluster that this host is no node of, through Ray Client.

What it says is printed here as it comes, and what it makes is brought home, whole or
not at all.
"""

import contextlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flytune.shapes.errors import FlytuneError
from flytune.tuner.bring_home import bring_home
from flytune.tuner.budget import Meter
from flytune.tuner.build_place import (
    NAMESPACE,
    NoNodeError,
    Wish,
    begin,
    begun_once_there_is_a_node,
)
from flytune.tuner.cluster_build import Line, Request
from flytune.tuner.nodes import last_line
from flytune.tuner.own_wheel import own_wheel
from flytune.tuner.placement import AskedNodes
from flytune.tuner.ray_address import check_listens

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    Keys = Sequence[Ed25519PrivateKey]

CLIENT, _JOBS = "ray://", ("http://", "https://")
# How long a build that was asked to stop may take; a bake's processes end first.
_STOP_S = 60.0
_SAID_S = 1.0


@dataclass(slots=True)
class RemoteBuild:
    """A build that is asked for there."""

    request: Request
    wish: Wish
    place: Callable[[Path], Path]
    """From the name of what it makes, where that belongs here."""
    prefix: str = ""
    """Of its lines, where there are several builds."""
    beginning: Any = None
    """What Ray answers with once the actor is there."""
    actor: Any = None
    code: int | None = None
    results: list[str] = field(default_factory=list)
    """Lines of its stdout."""
    seen: int = 0


def is_remote(address: str | None) -> bool:
    """Whether an address is of a cluster that this host is no node of.

    Raises:
        FlytuneError: it is of Ray's job server, which builds are not asked of.
    """
    if address is not None and address.startswith(_JOBS):
        raise FlytuneError(
            f"builds go through Ray Client, and not by jobs: {address}",
            hint="give ray://HEAD:10001, or submit `flytune build --ray auto` with "
            "`ray job submit`",
        )
    return address is not None and address.startswith(CLIENT)


def build_remotely(
    builds: Sequence[RemoteBuild],
    address: str,
    sent: Path,
    keys: "Keys",
    meter: Meter,
) -> bool:
    """Run builds on a cluster, and bring home what they make.

    Args:
        address: "ray://HOST:PORT".
        sent: The folder that goes there.
        keys: Those that sign the bundles, here.
        meter: Counts from the start of the command.

    Returns:
        Whether all of them went well.

    Raises:
        FlytuneError: the cluster cannot be reached or has no node for a build, or what
            comes from it is not what it has made.
        KeyboardInterrupt: a build was stopped, there too.
    """
    with _connected(address, sent) as ray, _losing(address):
        try:
            _begin(ray, builds, meter)
            _follow(ray, builds)
            _bring_all_home(ray, builds, address, keys)
        except KeyboardInterrupt:
            _stop(ray, builds)
            raise
    return all(build.code == 0 for build in builds)


@contextlib.contextmanager
def _connected(address: str, sent: Path) -> Iterator[Any]:
    """Be a client of a cluster, whose processes have this flytune and what is sent."""
    # What a client needs, which Ray would say in other words.
    import grpc  # noqa: F401

    _use_token()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    check_listens(address, address.removeprefix(CLIENT))
    with tempfile.TemporaryDirectory(prefix="flytune-wheel-") as directory:
        modules = [str(own_wheel(Path(directory)))]
        try:
            with warnings.catch_warnings(action="ignore"):
                ray.init(
                    address,
                    log_to_driver=False,
                    logging_level="ERROR",
                    namespace=NAMESPACE,
                    runtime_env={"py_modules": modules, "working_dir": str(sent)},
                )
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise _not_joined(address, error) from error
    try:
        yield ray
    finally:
        with contextlib.suppress(ConnectionError):
            ray.shutdown()


def _use_token() -> None:
    """Show the cluster the token that Ray keeps here; its client alone would not."""
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"))
    if "RAY_AUTH_TOKEN" in os.environ or token.expanduser().is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _not_joined(address: str, error: Exception) -> FlytuneError:
    said = " ".join(str(error).split())
    if "was started with" in said:
        return FlytuneError(
            f"cannot build there: {address}: {said.rstrip('.')}",
            hint="use the cluster's versions of Ray and Python here",
        )
    if "timeout" in said:
        said = "what listens there does not answer as Ray Client does"
    return FlytuneError(
        f"cannot build there: {address}: {said}",
        hint="the head must have ray[client], and its token must be in "
        "~/.ray/auth_token here",
    )


@contextlib.contextmanager
def _losing(address: str) -> Iterator[None]:
    """Say in one line what fails on the way to the cluster, or there."""
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, FlytuneError):
            raise error.cause from None
        raise _lost(address, error) from error
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise _lost(address, error) from error


def _lost(address: str, error: Exception) -> FlytuneError:
    return FlytuneError(
        f"lost the build: {address}: {type(error).__name__}: {last_line(error)}",
        hint="the same command finds it again, or goes on from where it was",
    )


def _begin(ray: Any, builds: Sequence[RemoteBuild], meter: Meter) -> None:
    remote = ray.remote(num_cpus=0, max_retries=0)(begin)
    asked = AskedNodes()
    try:
        for build in builds:

            def ask(build: RemoteBuild = build) -> bool | NoNodeError:
                request = replace(build.request, passed_s=meter.seconds)
                build.beginning = remote.remote(request, build.wish, asked)
                begun: bool | NoNodeError = ray.get(build.beginning)
                return begun

            def say(line: str, prefix: str = build.prefix) -> None:
                click.echo(f"{prefix}{line}", err=True)

            if not begun_once_there_is_a_node(ask, build.wish, say):
                say("goes on from an earlier command")
            build.actor = ray.get_actor(build.request.actor, NAMESPACE)
    # Whatever fails: nobody would know of those that have begun.
    except Exception:
        for build in builds:
            _find_begun(ray, build)
        if any(build.actor is not None for build in builds):
            _stop(ray, builds)
        raise


def _find_begun(ray: Any, build: RemoteBuild) -> None:
    """Know the actor of a build that begins just now, or let it not begin."""
    if build.actor is not None or build.beginning is None:
        return
    lost = (ConnectionError, ray.exceptions.RayError)
    with contextlib.suppress(*lost):
        try:
            ray.get(build.beginning, timeout=_STOP_S)
        except ray.exceptions.GetTimeoutError:
            ray.cancel(build.beginning)
            ray.get(build.beginning, timeout=_STOP_S)
    # It may have failed, or been cancelled, with its actor there.
    with contextlib.suppress(ValueError, *lost):
        build.actor = ray.get_actor(build.request.actor, NAMESPACE)


def _follow(ray: Any, builds: Sequence[RemoteBuild]) -> None:
    """Print what builds say until all have ended."""
    while going := [build for build in builds if build.code is None]:
        said = [build.actor.said.remote(build.seen, _SAID_S) for build in going]
        for build, (lines, code) in zip(going, ray.get(said), strict=True):
            _print(build, lines)
            build.code = code


def _bring_all_home(
    ray: Any, builds: Sequence[RemoteBuild], address: str, keys: "Keys"
) -> None:
    """Bring home each build by itself: where one cannot come the others do."""
    faults = []
    for build in builds:
        try:
            with _losing(address):
                bring_home(ray, build, keys)
        except FlytuneError as error:
            faults.append((build, error))
    if faults:
        *others, (_, last) = faults
        for build, fault in others:
            click.echo(f"{build.prefix}error: {fault.line}", err=True)
        raise last


def _print(build: RemoteBuild, lines: Sequence[Line]) -> None:
    build.seen += len(lines)
    for line in lines:
        if line.is_result:
            build.results.append(line.text)
        else:
            click.echo(f"{build.prefix}{line.text}", err=True)


def _stop(ray: Any, builds: Sequence[RemoteBuild]) -> None:
    """Let every build end as at home, and give back what it holds."""
    click.echo("stopping the build there", err=True)
    for build in builds:
        _find_begun(ray, build)
    begun = [build for build in builds if build.actor is not None]
    with contextlib.suppress(ConnectionError, ray.exceptions.RayError):
        ray.get([build.actor.stop.remote() for build in begun], timeout=_STOP_S)
        until = time.monotonic() + _STOP_S
        for build in begun:
            while build.code is None and time.monotonic() < until:
                said = build.actor.said.remote(build.seen, _SAID_S)
                lines, build.code = ray.get(said, timeout=_STOP_S)
                build.seen += len(lines)
        for build in begun:
            # With it ends what would not stop.
            ray.kill(build.actor)
