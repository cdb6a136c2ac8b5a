"""What the ledger notes of each look into torch's caches of graphs."""

from collections.abc import Callable, Mapping
from typing import Any

from flytune.caches.compat import Wrapper, private
from flytune.caches.inductor import CODECACHE, key_parts
from flytune.caches.ledger import Event, Kind, Ledger, Lookup

AUTOGRAD_CACHE = "torch._functorch._aot_autograd.autograd_cache"

# Key, its parts' lines, why there is no key, and whether a size is dynamic.
_Seen = list[tuple[str, list[str], str, bool]]


def lookup_points(ledger: Ledger) -> tuple[tuple[str, str, Wrapper], ...]:
    """Return the entry points of torch's caches: module, path in it, and wrapper."""
    seen: _Seen = []
    return (
        (CODECACHE, "FxGraphCache.prepare_key", _fx_key(ledger)),
        (CODECACHE, "FxGraphCache.load_with_key", _fx_load(ledger)),
        ("torch._dynamo.package", "DiskDynamoCache.load", _dynamo_load(ledger)),
        (AUTOGRAD_CACHE, "autograd_cache_key", _aot_key(seen)),
        (AUTOGRAD_CACHE, "AOTAutogradCache.try_load", _aot_load(ledger, seen)),
    )


def _dynamo_load(ledger: Ledger) -> Wrapper:
    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def load(self: Any, function: Any) -> Any:
            entry = inner(self, function)
            state = "miss" if entry is None else "hit"
            ledger.note(lambda: Lookup("dynamo", state, str(function.__qualname__)))
            return entry

        return load

    return wrapper


def _fx_key(ledger: Ledger) -> Wrapper:
    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_key(*args: Any, **kwargs: Any) -> Any:
            key, info = inner(*args, **kwargs)
            if key is None:
                ledger.note(lambda: _bypass(info))
            return key, info

        return prepare_key

    return wrapper


def _bypass(info: Mapping[str, Any]) -> Lookup:
    return Lookup("fx", "bypass", "", {}, str(info.get("cache_bypass_reason", "")))


def _fx_load(ledger: Ledger) -> Wrapper:
    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def load_with_key(
            key: str, debug_lines: list[str], *args: Any, **kwargs: Any
        ) -> Any:
            graph, info = inner(key, debug_lines, *args, **kwargs)
            state = "miss" if graph is None else "hit"
            ledger.note(lambda: Lookup("fx", state, key, key_parts(debug_lines)))
            return graph, info

        return load_with_key

    return wrapper


def _aot_key(seen: _Seen) -> Wrapper:
    """Keep what the last key was made of for `_aot_load`, which does not return it."""

    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def autograd_cache_key(mod: Any, inputs: Any, *args: Any, **kw: Any) -> Any:
            dynamic = any(type(value).__name__ == "SymInt" for value in inputs)
            try:
                key, lines = inner(mod, inputs, *args, **kw)
            except Exception as error:
                seen.append(("", [], str(error), dynamic))
                raise
            seen.append((key, lines, "", dynamic))
            return key, lines

        return autograd_cache_key

    return wrapper


def _aot_load(ledger: Ledger, seen: _Seen) -> Wrapper:
    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        counters = private("torch._dynamo.utils", "counters")[2]["aot_autograd"]

        def try_load(*args: Any, **kwargs: Any) -> Any:
            before = dict(counters)
            seen.clear()
            result = inner(*args, **kwargs)
            states = [
                state
                for state in ("hit", "bypass", "miss")
                if counters[f"autograd_cache_{state}"]
                > before.get(f"autograd_cache_{state}", 0)
            ]
            key, lines, reason, dynamic = seen[-1] if seen else ("", [], "", False)
            state = states[0] if states else "miss"
            ledger.note(lambda: Lookup("aot", state, key, key_parts(lines), reason))
            if dynamic:
                ledger.add(Event(Kind.DYNAMIC, "a graph has dynamic sizes"))
            return result

        return try_load

    return wrapper
