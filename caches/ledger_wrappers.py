"""What counts a call of torch's that is more than one event: who made it, and why."""

import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from flytune.caches.compat import Wrapper
from flytune.caches.ledger import Event, Kind, Ledger


def cpp_build(ledger: Ledger) -> Wrapper:
    """Tell kernels from instruction-set probes and precompiled headers."""

    def kind_of(target: str) -> Kind:
        if target.endswith((".gch", ".pch", ".i")):
            return Kind.HEADER
        frame = sys._getframe(2)
        for _ in range(4):
            if frame.f_code.co_name == "check_build":
                return Kind.ISA_PROBED
            if frame.f_back is None:
                break
            frame = frame.f_back
        return Kind.CPP_COMPILED

    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            target = str(self.get_target_file_path())
            kind, start = kind_of(target), time.perf_counter()
            try:
                return inner(self, *args, **kwargs)
            finally:
                name = target.rpartition("/")[2]
                ledger.add(Event(kind, name, time.perf_counter() - start))

        return call

    return wrapper


def timings_lookup(ledger: Ledger) -> Wrapper:
    """Count a list that the timings file does not answer, and say which are absent."""

    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(
            self: Any,
            choices: Sequence[Any],
            op: str,
            inputs: str,
            benchmark: Callable[..., Any] | None,
            hint_override: int | None = None,
        ) -> Any:
            def stored(some: Sequence[Any]) -> Any:
                return inner(self, some, op, inputs, None, hint_override=hint_override)

            known = stored(choices)
            if benchmark is None or all(choice in known for choice in choices):
                return known
            # One by one: Inductor stops at the first that is absent.
            absent = tuple(c.hash_key() for c in choices if not stored([c]))
            start = time.perf_counter()
            result = inner(
                self, choices, op, inputs, benchmark, hint_override=hint_override
            )
            ledger.add(
                Event(Kind.TUNED, f"{op} {inputs}", time.perf_counter() - start, absent)
            )
            return result

        return lookup

    return wrapper


def first_run(ledger: Ledger) -> Wrapper:
    """Count each graph when it is called first; none is kept alive for that."""
    seen: dict[int, weakref.ref[Any]] = {}

    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, inputs: Any) -> Any:
            key = id(self)
            if key not in seen:
                seen[key] = weakref.ref(self, lambda _: seen.pop(key, None))
                ledger.add_graph()
            return inner(self, inputs)

        return call

    return wrapper


def fall_back(ledger: Ledger) -> Wrapper:
    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def exceeds_recompile_limit(*args: Any, **kwargs: Any) -> Any:
            exceeded, limit = inner(*args, **kwargs)
            if exceeded:
                ledger.add(Event(Kind.FELL_BACK, f"Dynamo's {limit} was reached"))
            return exceeded, limit

        return exceeds_recompile_limit

    return wrapper


def watch_commands(ledger: Ledger) -> None:
    inner = subprocess.Popen.__init__

    def init(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        ledger.note(lambda: Event(Kind.COMPILER_QUERY, _words(args)[:120]))
        inner(self, args, *rest, **kwargs)

    subprocess.Popen.__init__ = init  # type: ignore[method-assign]


def _words(args: Any) -> str:
    """Return a command in words; what can be read but once is left to the command."""
    if isinstance(args, list | tuple):
        return " ".join(map(str, args))
    return str(args) if isinstance(args, str | bytes | os.PathLike) else "a command"
