"""The entry points of torch and FlyDSL that the ledger watches, and their wrappers.

`arm` resolves every one of them first, so that a torch release which changed one is
an error at the start and never a silent zero.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flytune.caches.after_imports import Actions, AfterImports
from flytune.caches.compat import Wrapper, benchmark_key, private, wrap
from flytune.caches.inductor import CODECACHE
from flytune.caches.ledger import Event, Kind, Ledger
from flytune.caches.ledger_lookups import lookup_points
from flytune.caches.ledger_wrappers import (
    cpp_build,
    fall_back,
    first_run,
    timings_lookup,
    watch_commands,
)
from flytune.shapes.errors import FlytuneError

SELECT = "torch._inductor.select_algorithm"
RUNTIME = "torch._inductor.runtime"
BENCHMARKING = f"{RUNTIME}.benchmarking"
MULTI = "MultiTemplateBuffer.finalize_as_triton_caller"
IR = "torch._inductor.ir"
CPP_KERNEL = "torch._inductor.codegen.cpp_template_kernel"
FLYDSL = "flydsl.compiler.jit_function"
FLYDSL_TEMPLATE = "torch._inductor.codegen.flydsl.flydsl_template"
TRITON = "triton.compiler.compiler"
TRITON_C = "triton.runtime.build"
GRAPH_CALL = "CompiledFxGraph.__call__"
RECOMPILES = "exceeds_recompile_limit"

Describe = Callable[[tuple[Any, ...], dict[str, Any]], str]


@dataclass(frozen=True, slots=True)
class Hook:
    """One entry point whose calls are counted."""

    module: str
    path: str
    kind: Kind
    describe: Describe
    detail: Callable[[tuple[Any, ...]], tuple[str, ...]] = lambda _: ()
    """What else to keep of the call's arguments."""

    def event(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], seconds: float
    ) -> Event:
        """Return the event of one call."""
        what = self.describe(args, kwargs)
        return Event(self.kind, what, seconds, self.detail(args))


def _graph_name(args: tuple[Any, ...], _: dict[str, Any]) -> str:
    return str(getattr(args[0], "name", "") or "graph")


def _list_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    # A custom operator gives them by name, everything else by place.
    name, choices = args[1:3] or (kwargs["name"], kwargs["choices"])
    return f"{name} of {len(choices)} candidates"


def _taken(args: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the hash of a candidate that goes into a graph, and its inputs' key."""
    choice = args[-1]
    inputs_key = private(SELECT, "create_inputs_key")[2](choice.input_nodes)
    return choice.hash_key(), benchmark_key(inputs_key, choice.layout.device.type)


def _code_name(args: tuple[Any, ...], _: dict[str, Any]) -> str:
    return str(args[0].co_qualname)


def _kernel_name(args: tuple[Any, ...], _: dict[str, Any]) -> str:
    fn = getattr(args[0], "fn", None)
    return str(getattr(fn, "__name__", "triton kernel"))


def _source_name(args: tuple[Any, ...], _: dict[str, Any]) -> str:
    return str(getattr(args[0], "name", "triton kernel"))


def _first_argument(args: tuple[Any, ...], _: dict[str, Any]) -> str:
    return str(args[0])


def _nothing(_: tuple[Any, ...], __: dict[str, Any]) -> str:
    return ""


HOOKS = (
    Hook("torch._dynamo.convert_frame", "_compile", Kind.TRACED, _code_name),
    Hook("torch._inductor.graph", "GraphLowering.run", Kind.LOWERED, _graph_name),
    Hook(SELECT, "AlgorithmSelectorCache.__call__", Kind.LISTED, _list_name),
    Hook(SELECT, "ExternKernelCaller.output_node", Kind.TAKEN, _nothing, _taken),
    Hook(SELECT, "TritonTemplateCaller.output_node", Kind.TAKEN, _nothing, _taken),
    Hook(CPP_KERNEL, "CppTemplateCaller.output_node", Kind.TAKEN, _nothing, _taken),
    # On an accelerator a template is taken later, when its epilogue is known.
    Hook(IR, MULTI, Kind.TAKEN, _nothing, _taken),
    Hook(BENCHMARKING, "Benchmarker.benchmark", Kind.BENCHMARKED, _nothing),
    Hook(BENCHMARKING, "Benchmarker.benchmark_cpu", Kind.BENCHMARKED, _nothing),
    Hook(
        f"{RUNTIME}.triton_heuristics",
        "CachingAutotuner._precompile_config",
        # A look into Triton's cache, which may hold the kernel.
        Kind.TRITON_LOADED,
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

LATE_HOOKS = (
    # Only what is not in Triton's cache comes this far.
    Hook(TRITON, "ASTSource.make_ir", Kind.TRITON_COMPILED, _source_name),
    # Modules in C: the one that talks to the driver, and launchers.
    Hook(TRITON_C, "_build", Kind.CPP_COMPILED, _first_argument),
    Hook(FLYDSL, "MlirCompiler.compile", Kind.FLYDSL_COMPILED, _nothing),
    # torch before 2.15 has no such candidates.
    Hook(
        FLYDSL_TEMPLATE,
        "FlyDSLTemplateCaller.output_node",
        Kind.TAKEN,
        _nothing,
        _taken,
    ),
)


Point = tuple[str, str, Wrapper]
"""An entry point: its module, its path in that, and what wraps it."""


def arm(ledger: Ledger) -> None:
    """Start to count in this process; torch is imported here if it is not yet.

    Raises:
        FlytuneError: this torch lacks an entry point that must be watched.
    """
    private(SELECT, "AlgorithmSelectorCache")
    for point in _points(ledger):
        wrap(*point)
    watch_commands(ledger)
    actions = when_imported(_late_points(ledger))
    AfterImports(actions, failed=_refuse).start()


def arm_late(ledger: Ledger, more: Actions) -> None:
    """Start to count in a process of somebody else, importing nothing for it.

    What cannot be watched is in the ledger, and the program goes on.

    Args:
        more: What else to do when modules were imported, before they are watched.
    """
    points = (*_points(ledger), *_late_points(ledger))
    actions = {name: list(some) for name, some in more.items()}
    for name, some in when_imported(points).items():
        actions[name] = [*actions.get(name, ()), *some]
    AfterImports(actions, failed=ledger.unseen).start()
    watch_commands(ledger)


def when_imported(points: Iterable[Point]) -> Actions:
    """Return what wraps entry points once their modules are imported."""
    actions: dict[str, list[Callable[[], None]]] = {}
    for point in points:
        actions.setdefault(point[0], []).append(functools.partial(wrap, *point))
    return actions


def entry_points(ledger: Ledger) -> tuple[tuple[str, str], ...]:
    """Return module and path of each entry point that `arm` must find."""
    return tuple((module, path) for module, path, _ in _points(ledger))


def _points(ledger: Ledger) -> tuple[Point, ...]:
    """Return the entry points that every program of Inductor's has."""
    return (
        *((hook.module, hook.path, _counted(ledger, hook)) for hook in HOOKS),
        ("torch._inductor.cpp_builder", "CppBuilder.build", cpp_build(ledger)),
        (CODECACHE, "PersistentCache.lookup", timings_lookup(ledger)),
        *lookup_points(ledger),
        ("torch._inductor.output_code", GRAPH_CALL, first_run(ledger)),
        ("torch._dynamo.convert_frame", RECOMPILES, fall_back(ledger)),
    )


def _late_points(ledger: Ledger) -> tuple[Point, ...]:
    """Return those of compilers that are imported with their first kernel, if ever."""
    return tuple((h.module, h.path, _counted(ledger, h)) for h in LATE_HOOKS)


def _refuse(error: Exception | str) -> None:
    if isinstance(error, Exception):
        raise error
    raise FlytuneError(f"the ledger {error}")


_inside = threading.local()


def _counted(ledger: Ledger, hook: Hook) -> Wrapper:
    """Count calls, but not those that another of the same kind makes."""

    def wrapper(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(_inside, hook.kind, False):
                return inner(*args, **kwargs)
            start = time.perf_counter()
            setattr(_inside, hook.kind, True)
            try:
                return inner(*args, **kwargs)
            finally:
                setattr(_inside, hook.kind, False)
                seconds = time.perf_counter() - start
                ledger.note(lambda: hook.event(args, kwargs, seconds))

        return call

    return wrapper
