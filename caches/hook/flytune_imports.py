"""A finder that tells when a module was imported.

Standard library alone, and nothing newer than Python 3.10: as the hook.
"""

import sys
from _thread import get_ident
from collections.abc import Iterable

# typing takes as long to load as all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class AfterImport:
    """A finder that calls `loaded` just after somebody imported a watched module."""

    def __init__(self, names: Iterable[str]) -> None:
        self._waiting = set(names)
        self._finding: set[tuple[int, str]] = set()

    def find_spec(
        self, fullname: str, path: "Any" = None, target: "Any" = None
    ) -> "Any":
        """Return what the other finders find, set to call back once it ran."""
        key = (get_ident(), fullname)
        if fullname not in self._waiting or key in self._finding:
            return None
        self._finding.add(key)
        try:
            spec = self._found(fullname, path, target)
        finally:
            self._finding.discard(key)
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader, fullname)
        return spec

    def loaded(self, module: "Any") -> None:
        """Look at a module that was imported; it may be told more than once."""
        raise NotImplementedError

    def unwatchable(self, fullname: str) -> None:
        """Learn that a module's loader lets nobody watch it."""
        raise NotImplementedError

    def start(self) -> None:
        """Watch from now on; what is imported already is looked at now."""
        sys.meta_path.insert(0, self)
        for name in sorted(self._waiting):
            module = sys.modules.get(name)
            spec = getattr(module, "__spec__", None)
            if getattr(spec, "_initializing", False):
                self._watch_rest(spec, module)
            elif module is not None:
                self.loaded(module)

    def leave(self) -> None:
        """Watch no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _watch_rest(self, spec: "Any", module: "Any") -> None:
        """Look at a module, whose import is under way, when that ends."""
        told, kind = self.loaded, type(spec)

        # Python's import sets this on the spec last of all, and nothing else tells.
        class Watched(kind):  # type: ignore[misc, valid-type]
            @property
            def _initializing(self) -> bool:
                return True

            @_initializing.setter
            def _initializing(self, value: bool) -> None:
                self.__class__ = kind
                self._initializing = value
                if sys.modules.get(module.__name__) is module:
                    told(module)

        spec.__class__ = Watched

    def _found(self, fullname: str, path: "Any", target: "Any") -> "Any":
        for finder in tuple(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find and finder is not self else None
            if spec is not None:
                return spec
        return None

    def _watch(self, loader: "Any", fullname: str) -> None:
        execute = loader.exec_module

        def exec_module(module: "Any") -> None:
            execute(module)
            self.loaded(module)

        # On the instance, so that the loader stays what inspect and pickle expect.
        try:
            loader.exec_module = exec_module
        except AttributeError:
            self.unwatchable(fullname)
