"""The address of a Ray cluster: what can be refused at once is."""

import os
import socket
import subprocess
import sys

from flytune.shapes.errors import FlytuneError

# Ray itself tries for minutes to reach an address where nothing listens.
CONNECT_S = 10.0
HEALTH_S = 60.0


def unreachable(address: str, reason: str) -> FlytuneError:
    """Return the error of an address that no Ray answers at."""
    return FlytuneError(
        f"cannot reach Ray: {address}: {reason}",
        hint="start it with `ray start --head`, or leave --ray out",
    )


def check_address(address: str) -> None:
    """Refuse at once what this host cannot join; "auto" Ray finds by itself.

    Raises:
        FlytuneError: nothing answers there, or Ray Client would.
    """
    _refuse_client(address)
    check_listens(address, address)


def check_listens(address: str, place: str) -> None:
    """Refuse an address of Ray's where nothing listens.

    Args:
        address: As it was given, for the error.
        place: "HOST:PORT"; what has no port is not asked.

    Raises:
        FlytuneError: nothing answers there.
    """
    host, port = host_and_port(place)
    if not port:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise unreachable(address, str(error)) from error


def _refuse_client(address: str) -> None:
    """Refuse Ray Client, whose driver, and with it the timing, is on another host."""
    asked = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    if asked.startswith("ray://"):
        raise FlytuneError(
            f"cannot time on this host through Ray Client: {asked}",
            hint="give it to --ray, and the build runs there; or host:port of one "
            "that this host is a node of",
        )


def host_and_port(address: str) -> tuple[str, str]:
    """Return the two of "host:port"; no port where the address has none."""
    host, _, port = address.rpartition(":")
    return (host, port) if port.isdecimal() else (address, "")


def check_health(address: str) -> None:
    """Refuse what answers and is no Ray, which Ray would try for minutes.

    Raises:
        FlytuneError: it does not say that it is well.
    """
    if not host_and_port(address)[1]:
        return
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    try:
        subprocess.run(
            [*command, "--address", address],
            check=True,
            capture_output=True,
            timeout=HEALTH_S,
        )
    except subprocess.SubprocessError as error:
        raise unreachable(address, "what answers there is no healthy Ray") from error
