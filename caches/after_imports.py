"""What is to be done when modules are imported, if ever, by whomever."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flytune.caches.hook.flytune_imports import AfterImport

Actions = Mapping[str, Sequence[Callable[[], None]]]
"""A module's name to what is called, in order, when it was imported."""


class AfterImports(AfterImport):
    """Calls each module's actions once, just after somebody imported it.

    Args:
        failed: Told of what an action raised, or of what cannot be watched, in words.
    """

    def __init__(
        self, actions: Actions, failed: Callable[[Exception | str], None]
    ) -> None:
        super().__init__(actions)
        self._actions = dict(actions)
        self._failed = failed

    def loaded(self, module: Any) -> None:
        """Call the module's actions."""
        name = module.__name__
        self._waiting.discard(name)
        if not self._waiting:
            self.leave()
        for action in self._actions.pop(name, ()):
            try:
                action()
            except Exception as error:  # whoever is told knows what may be raised
                self._failed(error)

    def unwatchable(self, fullname: str) -> None:
        """Tell that a module's loader lets nobody watch it."""
        self._failed(f"cannot watch a module: {fullname}")
