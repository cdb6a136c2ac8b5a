"""A command whose every Python process keeps a ledger, without any change to it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flytune.caches.hook.flytune_start import WATCH_VARIABLE
from flytune.caches.hook.flytune_watch import PACKAGES
from flytune.caches.install import python_path
from flytune.caches.policy import ServingPolicy
from flytune.caches.watched import REQUEST_NAME

# flytune's folders, of which a process may import what it is asked for.
_FOLDERS = ("shapes", "caches", "tuner")


@dataclass(frozen=True, slots=True)
class Watch:
    """What each process of a command is to do besides what it does."""

    policy: ServingPolicy | None = None
    """Held to it; None where the bundle that it serves from does that."""
    search: str | None = None
    """The search space of what is lowered, as for `widen_search`."""
    keep_descents: bool = False
    """Whether the function of that name is called."""
    without: tuple[str, ...] = ()
    """Modules that it must not find."""
    timings: Path | None = None
    """Inductor's timings file, for processes that look for it elsewhere."""
    also: tuple[str, ...] = ()
    """Modules of flytune's whose `actions` are taken too."""
    flydsl: bool = False
    """Whether these say why a list has no candidates of FlyDSL's."""


def watched_environment(
    folder: Path, environment: Mapping[str, str], watch: Watch
) -> dict[str, str]:
    """Return an environment whose Python processes write ledgers into a folder.

    Args:
        folder: An empty one; `ledger_file.read_ledgers` reads it.
        environment: What they have besides.
    """
    links = folder.absolute() / PACKAGES / "flytune"
    links.mkdir(parents=True)
    root = Path(__file__).parents[1]
    for name in _FOLDERS:
        (links / name).symlink_to(root / name, target_is_directory=True)
    request = {
        "policy": None if watch.policy is None else watch.policy.to_json(),
        "search": watch.search,
        "keep_descents": watch.keep_descents,
        "without": watch.without,
        "timings": None if watch.timings is None else str(watch.timings.absolute()),
        "also": watch.also,
        "flydsl": watch.flydsl,
    }
    (folder / REQUEST_NAME).write_text(json.dumps(request))
    return {
        **environment,
        "PYTHONPATH": python_path(environment),
        WATCH_VARIABLE: os.fspath(folder.absolute()),
    }
