"""How a bundle was built, for its manifest: command, commit, image and host."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
_GIT_TIMEOUT_S = 10
# What podman tells a container of itself; docker tells it no name.
_CONTAINER = Path("/run/.containerenv")
_IMAGE = re.compile(r'^image="([^"]+)"$', re.MULTILINE)


def provenance(command: Sequence[str]) -> Mapping[str, Any]:
    """Return where and how a build runs; None stands for what is not known.

    Args:
        command: the words as they were typed. No option of flytune's takes a secret,
            and of the environment nothing is kept but the image's name.
    """
    return {
        "command": list(command),
        "commit": _commit(),
        "image": os.environ.get("FLYTUNE_IMAGE") or _container_image(),
        "host": platform.node() or None,
    }


def _commit() -> str | None:
    """Return the commit of the current folder's work tree, "-dirty" if it differs."""
    describe = ("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    try:
        done = subprocess.run(
            [*_GIT, *describe],
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _container_image() -> str | None:
    try:
        found = _IMAGE.search(_CONTAINER.read_text(errors="replace"))
    except OSError:
        return None
    return found and found[1]
