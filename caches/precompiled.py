"""Entries of Dynamo's on disk, with which a process need not trace a program again.

torch stores them for a process that asks for it (`policy.PRECOMPILE`), without the
guards that cannot be stored: what a dropped guard would have noticed, such as another
class under the same name, goes unnoticed. Where torch refuses an entry altogether, the
bake drops the guard that it refuses for, and says which.
"""

import inspect
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType
from typing import Any

from flytune.caches.compat import private, stores_closures, wrap

_GUARDS = "torch._dynamo.guards"
_PACKAGE = "torch._dynamo.package"


class Precompiler:
    """Makes what this process compiles storable, and stores it."""

    def __init__(self) -> None:
        self.dropped: set[str] = set()
        """Guards that no stored entry checks, "KIND on NAME"."""
        self._refused = private(
            _GUARDS, "CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES"
        )[2]
        self._closures = stores_closures()

    def arm(self) -> None:
        """Drop what cannot be stored from every guard that is made from now on.

        Raises:
            FlytuneError: this torch lacks an interface that this needs.
        """
        wrap(_GUARDS, "CheckFunctionManager.__init__", self._filtered)
        wrap(_PACKAGE, "CompilePackage._add_function", _in_its_module)
        private(_PACKAGE, "CompilePackage.add_import_source")
        wrap("torch._dynamo.output_graph", "OutputGraph.install_global_by_id", _named)

    def store(self) -> None:
        """Write the entries of all that was compiled so far into the cache directory.

        Resetting Dynamo forgets them.
        """
        import torch

        torch.compiler.save_cache_artifacts()

    def _filtered(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(inner)

        def init(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            own = bound.arguments.get("guard_filter_fn")

            def keeps(guards: Sequence[Any]) -> list[bool]:
                kept = [True] * len(guards) if own is None else list(own(guards))
                return [k and self._keeps(g) for k, g in zip(kept, guards, strict=True)]

            bound.arguments["guard_filter_fn"] = keeps
            inner(*bound.args, **bound.kwargs)

        return init

    def _keeps(self, guard: Any) -> bool:
        kinds = {guard.guard_type, *guard.derived_guard_types}
        name = guard.orig_guard.name
        storable = self._closures or "__closure__" not in name
        if storable and kinds.isdisjoint(self._refused):
            return True
        self.dropped.add(f"{guard.guard_type} on {name}")
        return False


def _in_its_module(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Store a function under the module whose names it sees.

    torch stores it under the one that it claims: a wrapper made by `functools.wraps`
    claims that of what it wraps, and the entry would be put where it does not look.
    """

    def add_function(
        self: Any, code: CodeType, module: str, *args: Any, **kwargs: Any
    ) -> Any:
        defined_in = inspect.getmodule(code)
        name = module if defined_in is None else defined_in.__name__
        return inner(self, code, name, *args, **kwargs)

    return add_function


def _named(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Store the modules that compiled code names, which torch only puts in place."""

    def install_global_by_id(self: Any, prefix: str, value: Any) -> str:
        name: str = inner(self, prefix, value)
        if isinstance(value, ModuleType) and self.package is not None:
            self.package.add_import_source(name, value.__name__)
        return name

    return install_global_by_id
