"""Whether the environment that will serve is the one that builds."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flytune.caches.child import plain_environment
from flytune.caches.device_profile import DeviceProfile
from flytune.caches.host import Part
from flytune.shapes.errors import FlytuneError

# What decides whether a kernel hits, and both a Python and a profile can tell.
_DECIDE = ("python_abi", "torch", "torch_key", "triton_key")
# Runs in a Python that may lack flytune.
_ASK = """
import json, sysconfig, torch
from torch._inductor.codecache import torch_key
from torch._inductor.runtime.triton_compat import triton_key
print(json.dumps({
    "python_abi": sysconfig.get_config_var("SOABI"),
    "torch": str(torch.__version__),
    "torch_key": torch_key().hex(),
    "triton_key": triton_key(),
}))
"""
_ASK_S = 120.0


def check_target_env(environment: Path, software: Mapping[str, Part]) -> None:
    """Refuse to build what the serving environment would miss.

    Args:
        environment: A virtual environment's folder, or a file that `flytune doctor
            --profile` wrote in it.
        software: The parts of the environment that builds.

    Raises:
        FlytuneError: a part of it differs, or it cannot be asked.
    """
    if environment.is_file():
        found = _captured(environment)
    else:
        found = asked(environment / "bin" / "python")
    if untold := [name for name in _DECIDE if name not in found]:
        raise FlytuneError(
            f"the serving environment does not tell its {untold[0]}: {environment}"
        )
    for name, value in found.items():
        if name in software and software[name] != value:
            raise FlytuneError(
                f"the serving environment differs: software.{name}: `{value}` there, "
                f"`{software[name]}` here",
                hint="run flytune in an environment with the same wheels and Python",
            )


def asked(python: Path) -> Mapping[str, Any]:
    """Return what decides whether kernels hit under a Python, as it tells itself.

    Raises:
        FlytuneError: it does not answer.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", _ASK],
            # The builder's own path would show it the builder's own torch.
            env={k: v for k, v in plain_environment().items() if k != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=True,
            timeout=_ASK_S,
        )
        # A site's own start-up may print before it.
        row = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        raise FlytuneError(
            f"the serving environment cannot be asked: {python}: {_why(error)}",
            hint="give the folder of a virtual environment that holds torch",
        ) from error
    return row if isinstance(row, dict) else {}


def _why(error: Exception) -> str:
    """Say in one line why a Python did not answer."""
    if isinstance(error, OSError):
        return str(error.strerror)
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer in {_ASK_S:g} s"
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "its answer is none"


def _captured(path: Path) -> Mapping[str, Any]:
    try:
        row = json.loads(path.read_text())
    except OSError as error:
        raise FlytuneError(
            f"device profile cannot be read: {path}: {error.strerror}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise FlytuneError(f"device profile is not JSON: {path}") from error
    return DeviceProfile.from_json(row).captured_with
