"""From a folder on a stick to a verified bundle, with no network at all."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from builds import COMMAND
from registry import registry
from small_bundles import small_bundle

CLOSED = "http://127.0.0.1:1"
# Who asks for anything beyond this host is told that the proxy is closed.
BLOCKED = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), CLOSED),
    "NO_PROXY": "",
    "no_proxy": "",
}


def flytune(
    home: Path, *words: object, before: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, *COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FLYTUNE_HOME": str(home), **env},
    )


def no_network() -> tuple[str, ...]:
    """The words before a command that give it a namespace without any interface.

    Where the kernel refuses them the closed proxy alone has to do.
    """
    words = ("unshare", "--map-root-user", "--net")
    done = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if done.returncode == 0 else ()


def journey(folder: Path, bundle: Path, *commands: tuple[object, ...]) -> str:
    """Take a bundle through a registry and a stick to a host without a network.

    Runs the commands there on what was pulled; returns what the last one printed.
    """
    stick, out, far = folder / "stick", folder / "pulled.tar.zst", folder / "far"
    with registry(folder / "registry") as running:
        there = f"{running.place}/team/tiny:v1"
        done = flytune(folder, "push", bundle, there, "--insecure")
        assert done.returncode == 0, done.stderr
        done = flytune(folder, "mirror", there, stick, "--insecure", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["layout"] == f"oci:{stick}:v1"
        # That it is blocked, where it would be asked for.
        blocked = {"before": no_network(), **BLOCKED}
        done = flytune(far, "pull", there, "--insecure", **blocked)
        assert "cannot be reached" in done.stderr
    pull = ("pull", f"oci:{stick}:v1", "--for-host", "--out", out)
    for words in (pull, *((name, out, *more) for name, *more in commands)):
        done = flytune(far, *words, **blocked)
        assert done.returncode == 0, done.stderr
    return done.stdout


def test_stick_serves_a_host_without_a_network(tmp_path: Path) -> None:
    bundle = small_bundle(tmp_path)
    assert "TORCHINDUCTOR_CACHE_DIR" in journey(tmp_path, bundle, ("install",))


@pytest.mark.slow
def test_bundle_from_a_stick_is_verified(tmp_path: Path, unfrozen_bundle: Path) -> None:
    commands = (("install",), ("verify", "--strict"))
    said = journey(tmp_path, unfrozen_bundle, *commands)
    assert said.startswith("verify  hit: 0 lowered, 0 tuned, 0 compiled")


@pytest.mark.parametrize("asked", ["oci:nowhere", "oci:nowhere:v1"])
def test_stick_that_is_not_there(tmp_path: Path, asked: str) -> None:
    done = flytune(tmp_path, "pull", asked)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no image layout: nowhere")
