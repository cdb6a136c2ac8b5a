"""Counts the GEMMs that a process runs, in each Python child of `flytune capture`.

A dispatch mode sees every operator that a thread calls, eagerly and in inference mode.

Standard library alone, and nothing newer than Python 3.10: as the hook.
"""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

if __package__:
    from flytune.caches.hook.flytune_counts import Counts
    from flytune.caches.hook.flytune_imports import AfterImport
else:  # In the child of a command, where this folder is on the path.
    from flytune_counts import (  # type: ignore[import-not-found, no-redef]
        Counts,
    )
    from flytune_imports import (  # type: ignore[import-not-found, no-redef]
        AfterImport,
    )

# Where A and B stand among the arguments, and the scales and bias that there may be.
_GEMMS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::addmm_": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
    "aten::baddbmm_": (1, 2),
    "aten::_scaled_mm": (0, 1, 2, 3, 4),
    "aten::_scaled_mm_v2": (0, 1, 2, 5, 8),
    "aten::_grouped_mm": (0, 1),
    "aten::_scaled_grouped_mm": (0, 1, 2, 3),
    "aten::_scaled_grouped_mm_v2": (0, 1, 2, 5),
}
# What reaches a dispatch mode whole in inference mode, and in parts without it.
_COMPOSITE = frozenset(
    f"aten::{name}"
    for name in (
        *("linear", "matmul", "einsum", "tensordot", "inner", "chain_matmul"),
        *("linalg_multi_dot", "scaled_dot_product_attention"),
    )
)
# Namespaces of operators that hold no GEMM but those above.
_TORCHS = frozenset({"aten", "prim", "prims", "c10d", "_c10d_functional", "profiler"})
_ENGINES = ("vllm", "sglang")


class CaptureImport(AfterImport):
    """Begins to count when torch is imported."""

    def __init__(self, folder: str) -> None:
        super().__init__(("torch",))
        self._folder = folder

    def loaded(self, module: Any) -> None:
        """Count in this thread, and in those that are started from now on."""
        self.leave()
        _guarded(lambda: _begin(module, Counts(self._folder)))

    def unwatchable(self, fullname: str) -> None:
        """Say that nothing is counted here."""
        self.leave()
        _say(f"cannot watch the import of {fullname}")


def _begin(torch: Any, counts: Counts) -> None:
    _compile_nothing(torch)
    mode = mode_of(torch, counts)
    mode().__enter__()
    start = threading.Thread.start

    # Modes are a thread's own.
    @functools.wraps(start)
    def start_counted(thread: threading.Thread) -> None:
        _guarded(lambda: _count_in(thread, mode))
        start(thread)

    threading.Thread.start = start_counted  # type: ignore[assignment,method-assign]


def _count_in(thread: threading.Thread, mode: Any) -> None:
    run = thread.run

    def run_counted() -> None:
        # Before it runs: a cycle would keep the thread's objects alive.
        vars(thread).pop("run", None)
        with mode():
            run()

    thread.run = run_counted  # type: ignore[method-assign]


def _compile_nothing(torch: Any) -> None:
    """Let the modules that are compiled run as they are written.

    A graph calls its kernels past every mode. Dynamo itself skips what runs in one, but
    takes it for an error where the whole graph is asked for.
    """
    compile = torch.compile

    @functools.wraps(compile)
    def uncompiled(model: Any = None, **options: Any) -> Any:
        return compile(model, **{**options, "disable": True})

    torch.compile = uncompiled


def mode_of(torch: Any, counts: Counts) -> Any:
    """Return the class of the dispatch mode that counts; an object is one thread's."""
    from torch.utils._python_dispatch import TorchDispatchMode

    ways: dict[Any, Callable[..., Any] | None] = {}
    plain = torch._C._disabled_torch_dispatch_impl

    class CaptureMode(TorchDispatchMode):
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            # This mode is set aside here; what lies below it is torch's own: it traces.
            if torch._C._len_torch_dispatch_stack():
                return func(*args, **kwargs)
            # What a subclass is made of comes here itself; a parameter is none.
            if any(kind.__torch_dispatch__ is not plain for kind in types):
                return NotImplemented
            if func not in ways:
                ways[func] = _guarded(lambda: _way(torch, func))
            way = ways[func]
            if way is not None:
                return way(self, counts, args, kwargs)
            return func(*args, **kwargs)

    return CaptureMode


def _way(torch: Any, func: Any) -> Callable[..., Any] | None:
    """Return how an operator is run and counted; None where it is only run."""
    if not isinstance(func, torch._ops.OpOverload):
        return None
    name = func._schema.name
    if name in _GEMMS:
        return functools.partial(_run_gemm, func, name)
    if name in _COMPOSITE:
        return functools.partial(_run_parts, func)
    if name.partition("::")[0] not in _TORCHS:
        return functools.partial(_run_custom, torch, func)
    return None


def _run_gemm(
    func: Any, name: str, _mode: Any, counts: Counts, args: Any, kwargs: Any
) -> Any:
    out = func(*args, **kwargs)
    _guarded(lambda: _count(counts, name, args, kwargs, out))
    return out


def _run_parts(func: Any, mode: Any, _counts: Counts, args: Any, kwargs: Any) -> Any:
    with mode:
        out = func.decompose(*args, **kwargs)
    return func(*args, **kwargs) if out is NotImplemented else out


def _run_custom(
    torch: Any, func: Any, mode: Any, _counts: Counts, args: Any, kwargs: Any
) -> Any:
    """Run an operator of an engine's own, and see the GEMMs that are within.

    Called plainly it would run without the mode, which is set aside meanwhile.
    """
    first = next((a for a in args if isinstance(a, torch.Tensor)), None)
    if first is None or not _has_kernel(torch, func, first.device.type):
        return func(*args, **kwargs)
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.Python)
    keys = torch._C._dispatch_keys(first) & after
    with mode:
        return func.redispatch(keys, *args, **kwargs)


def _has_kernel(torch: Any, func: Any, device: str) -> bool:
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device)
    has = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return key is not None and bool(has(func.name(), key))


def _count(counts: Counts, name: str, args: Any, kwargs: Any, out: Any) -> None:
    a_at, b_at, *more = _GEMMS[name]
    a, b = args[a_at], args[b_at]
    if a.device.type == "meta":
        return
    scales = tuple(_scale(args[at]) for at in more[:2])
    bias = bool(more[2:]) and _argument(args, kwargs, more[2]) is not None
    key = (
        *(name, a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype),
        *(out.dtype, a.device.type, scales, bias),
    )
    counts.add(key, functools.partial(_row, key))


def _row(key: Any) -> dict[str, Any]:
    name, *a_and_b, out, device, scales, bias = key
    a, b = a_and_b[:3], a_and_b[3:]
    return {
        "op": name.partition("::")[2],
        "a": [list(a[0]), list(a[1]), str(a[2])],
        "b": [list(b[0]), list(b[1]), str(b[2])],
        "out": str(out),
        "device": device,
        "scales": [[list(sizes), str(dtype)] for sizes, dtype in scales],
        "bias": bias,
        "engine": next((name for name in _ENGINES if name in sys.modules), ""),
    }


def _scale(value: Any) -> Any:
    # Of two levels, the first is that of the blocks.
    scale = value[0] if isinstance(value, (list, tuple)) else value
    return tuple(scale.shape), scale.dtype


def _argument(args: Any, kwargs: Any, at: int) -> Any:
    return args[at] if len(args) > at else kwargs.get("bias")


_failed = False


def _guarded(work: Callable[[], Any]) -> Any:
    """Do what serves counting alone; None where it fails.

    Whatever goes wrong here, the program runs as it would have without: it is said
    once.
    """
    global _failed
    try:
        return work()
    except Exception as error:
        if not _failed:
            _failed = True
            _say(f"not all GEMMs are counted: {type(error).__name__}: {error}")
        return None


def _say(line: str) -> None:
    try:
        print(f"flytune: capture: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return
