"""What each Python child of a served command loads at its start: little.

Most never import torch. The hook itself, and what it needs of the standard library, is
loaded when one does.
"""

import importlib
import os
import sys

if __package__:
    from flytune.caches.hook.flytune_imports import AfterImport
else:  # In the child of a command, where this folder is on the path.
    from flytune_imports import (  # type: ignore[import-not-found, no-redef]
        AfterImport,
    )

# typing takes as long to load as all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INSTALLED_VARIABLE = "FLYTUNE_INSTALLED"
CAPTURE_VARIABLE = "FLYTUNE_CAPTURE"
"""Names the folder that `flytune capture` has processes count GEMMs into."""
WATCH_VARIABLE = "FLYTUNE_WATCH"
"""Names the folder that processes write their ledgers into."""
DISABLE_VARIABLE = "FLYTUNE_DISABLE"


class Waiting(AfterImport):
    """Arms the hook when torch is imported."""

    def __init__(self, directory: str) -> None:
        super().__init__(("torch",))
        self.flytune_directory = directory

    def loaded(self, module: "Any") -> None:
        """Hand over to the hook, which looks at torch now."""
        self.leave()
        _hook().arm_from_environment()

    def unwatchable(self, fullname: str) -> None:
        """Let the hook say that nothing can hold torch to the bundle."""
        self.leave()
        _hook().arm_from_environment(unwatchable=fullname)

    def disable(self, reason: None) -> None:
        """Set the environment back, as this process installs a bundle itself."""
        self.leave()
        _hook().restore_from_environment()


def start() -> None:
    """Wait for torch if the environment names a bundle, a capture or a ledger."""
    if folder := os.environ.get(WATCH_VARIABLE):
        _own("flytune_watch").WatchImport(folder).start()
    if folder := os.environ.get(CAPTURE_VARIABLE):
        _own("flytune_capture").CaptureImport(folder).start()
    directory = os.environ.get(INSTALLED_VARIABLE)
    if not directory:
        return
    if is_disabled():
        _hook().arm_from_environment()
    else:
        Waiting(directory).start()


def is_disabled() -> bool:
    """Whether the environment says to do without any bundle."""
    return os.environ.get(DISABLE_VARIABLE, "") not in ("", "0")


def _hook() -> "Any":
    return _own("flytune_hook")


def _own(name: str) -> "Any":
    """Return a module of this folder."""
    if __package__:
        return importlib.import_module(f"{__package__}.{name}")
    # The program may have changed its path since.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(here)
