"""The entry points of torch and FlyDSL that the ledger watches, and their wrappers.

`arm` resolves every one of them first, so that a torch release which changed one is
an error at the start and never a silent zero.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from flytune.caches.compat import private
from flytune.caches.inductor import CODECACHE, key_parts
from flytune.caches.ledger import Event, Kind, Ledger, Lookup

AUTOGRAD_CACHE = "torch._functorch._aot_autograd.autograd_cache"
SELECT = "torch._inductor.select_algorithm"
RUNTIME = "torch._inductor.runtime"
FLYDSL = "flydsl.compiler.jit_function"

Describe = Callable[[tuple[Any, ...], dict[str, Any]], str]


@dataclass(frozen=True, slots=True)
class Hook:
    """One entry point whose calls are counted."""

    module: str
    path: str
    kind: Kind
    describe: Describe


def _graph_name(args: tuple[Any, ...], _: dict[str, Any]) -> str:
    return str(getattr(args[0], "name", "") or "graph")


def _list_name(args: tuple[Any, ...], _: dict[str, Any]) -> str:
    return f"{args[1]} of {len(args[2])} candidates"


def _kernel_name(args: tuple[Any, ...], _: dict[str, Any]) -> str:
    fn = getattr(args[0], "fn", None)
    return str(getattr(fn, "__name__", "triton kernel"))


def _nothing(_: tuple[Any, ...], __: dict[str, Any]) -> str:
    return ""


HOOKS = (
    Hook("torch._inductor.graph", "GraphLowering.run", Kind.LOWERED, _graph_name),
    Hook(SELECT, "AlgorithmSelectorCache.__call__", Kind.LISTED, _list_name),
    Hook(
        f"{RUNTIME}.benchmarking", "Benchmarker.benchmark", Kind.BENCHMARKED, _nothing
    ),
    Hook(
        f"{RUNTIME}.triton_heuristics",
        "CachingAutotuner._precompile_config",
        Kind.TRITON_COMPILED,
        _kernel_name,
    ),
    Hook(
        f"{RUNTIME}.triton_heuristics",
        "CachingAutotuner.benchmark_all_configs",
        Kind.TRITON_TUNED,
        _kernel_name,
    ),
    Hook(
        f"{RUNTIME}.coordinate_descent_tuner",
        "CoordescTuner.autotune",
        Kind.COORDINATE_DESCENT,
        _nothing,
    ),
)


def arm(ledger: Ledger) -> None:
    """Start to count in this process; torch is imported here if it is not yet.

    Raises:
        FlytuneError: this torch lacks an entry point that must be watched.
    """
    private(SELECT, "AlgorithmSelectorCache")
    for hook in HOOKS:
        _wrap(hook.module, hook.path, _counted(ledger, hook))
    _wrap("torch._inductor.cpp_builder", "CppBuilder.build", _cpp_build(ledger))
    _wrap(CODECACHE, "PersistentCache.lookup", _timings_lookup(ledger))
    _wrap(CODECACHE, "FxGraphCache.prepare_key", _fx_key(ledger))
    _wrap(CODECACHE, "FxGraphCache.load_with_key", _fx_load(ledger))
    seen: list[tuple[str, list[str], str, bool]] = []
    _wrap(AUTOGRAD_CACHE, "autograd_cache_key", _aot_key(seen))
    _wrap(AUTOGRAD_CACHE, "AOTAutogradCache.try_load", _aot_load(ledger, seen))
    _wrap("torch._dynamo.convert_frame", "exceeds_recompile_limit", _fall_back(ledger))
    _watch_commands(ledger)
    _when_imported(FLYDSL, functools.partial(_arm_flydsl, ledger))


Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def _wrap(module: str, path: str, wrapper: Wrapper) -> None:
    """Replace an attribute by its wrapped self, keeping static and class methods."""
    owner, name, bound = private(module, path)
    raw = vars(owner).get(name, bound)
    inner = raw.__func__ if isinstance(raw, staticmethod | classmethod) else raw
    outer = functools.wraps(inner)(wrapper(inner))
    is_method = isinstance(raw, staticmethod | classmethod)
    setattr(owner, name, type(raw)(outer) if is_method else outer)


def _counted(ledger: Ledger, hook: Hook) -> Wrapper:
    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                ledger.add(
                    Event(
                        hook.kind,
                        hook.describe(args, kwargs),
                        time.perf_counter() - start,
                    )
                )

        return call

    return wrapper


def _cpp_build(ledger: Ledger) -> Wrapper:
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


def _timings_lookup(ledger: Ledger) -> Wrapper:
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


def _fx_key(ledger: Ledger) -> Wrapper:
    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_key(*args: Any, **kwargs: Any) -> Any:
            key, info = inner(*args, **kwargs)
            if key is None:
                reason = str(info.get("cache_bypass_reason", ""))
                ledger.add_lookup(Lookup("fx", "bypass", "", {}, reason))
            return key, info

        return prepare_key

    return wrapper


def _fx_load(ledger: Ledger) -> Wrapper:
    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def load_with_key(
            key: str, debug_lines: list[str], *args: Any, **kwargs: Any
        ) -> Any:
            graph, info = inner(key, debug_lines, *args, **kwargs)
            state = "miss" if graph is None else "hit"
            ledger.add_lookup(Lookup("fx", state, key, key_parts(debug_lines)))
            return graph, info

        return load_with_key

    return wrapper


def _aot_key(seen: list[tuple[str, list[str], str, bool]]) -> Wrapper:
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


def _aot_load(ledger: Ledger, seen: list[tuple[str, list[str], str, bool]]) -> Wrapper:
    counters = private("torch._dynamo.utils", "counters")[2]["aot_autograd"]

    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
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
            ledger.add_lookup(Lookup("aot", state, key, key_parts(lines), reason))
            if dynamic:
                ledger.add(Event(Kind.DYNAMIC, "a graph has dynamic sizes"))
            return result

        return try_load

    return wrapper


def _fall_back(ledger: Ledger) -> Wrapper:
    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def exceeds_recompile_limit(*args: Any, **kwargs: Any) -> Any:
            exceeded, limit = inner(*args, **kwargs)
            if exceeded:
                ledger.add(Event(Kind.FELL_BACK, f"Dynamo's {limit} was reached"))
            return exceeded, limit

        return exceeds_recompile_limit

    return wrapper


def _watch_commands(ledger: Ledger) -> None:
    inner = subprocess.Popen.__init__

    def init(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        words = args if isinstance(args, str) else " ".join(map(str, args))
        ledger.add(Event(Kind.COMPILER_QUERY, words[:120]))
        inner(self, args, *rest, **kwargs)

    subprocess.Popen.__init__ = init  # type: ignore[method-assign]


def _arm_flydsl(ledger: Ledger) -> None:
    hook = Hook(FLYDSL, "MlirCompiler.compile", Kind.FLYDSL_COMPILED, _nothing)
    _wrap(hook.module, hook.path, _counted(ledger, hook))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Run a callback once a module has been imported by somebody else."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name, self._callback = name, callback

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run, callback = spec.loader.exec_module, self._callback

        def exec_module(module: ModuleType) -> None:
            run(module)
            callback()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _when_imported(name: str, callback: Callable[[], None]) -> None:
    if name in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _AfterImport(name, callback))
