"""Candidates that are graphs of several kernels: decompose-K.

It is a bmm over slices of K and a kernel that sums them. Inductor has no request for
such a candidate and lowers its graph when it would time it. Here the probe lowers it,
its module's text is what is shipped, the builder compiles the kernels that the text
holds, and the runner calls it.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flytune.caches.compat import private
from flytune.caches.inductor import CODECACHE

if TYPE_CHECKING:
    import torch

DECOMPOSE_K = "decompose_k"
Call = Callable[[list["torch.Tensor"]], Sequence["torch.Tensor"]]
"""Takes the inputs out of the list that it is given."""

_ASYNC_COMPILE = "torch._inductor.async_compile"
# As Inductor lowers it to time it (`SubgraphChoiceCaller._compile_for_benchmarking`),
# and nothing that would compile when it is first run.
_LOWERING = {
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_gemm_backends": "ATEN",
    "benchmark_fusion": False,
    "coordinate_descent_tuning": False,
    "dynamic_scale_rblock": False,
}


def is_subgraph(choice: Any) -> bool:
    """Whether a choice of Inductor's is a graph, which no request can be made of."""
    caller = private("torch._inductor.codegen.subgraph", "SubgraphChoiceCaller")[2]
    return isinstance(choice, caller)


def is_decompose_k(choice: Any) -> bool:
    """Whether a choice of Inductor's is a decomposed sum over K."""
    return is_subgraph(choice) and str(choice.name).startswith(DECOMPOSE_K)


def source_of(choice: Any) -> str:
    """Return the module of a choice, lowered while the graph around it is lowered.

    Empty where it cannot be lowered apart from that.
    """
    if choice.sym_inputs:
        return ""
    graph = private("torch._inductor.graph", "GraphLowering")[2]
    virtualized = private("torch._inductor.virtualized", "V")[2]
    config: Any = importlib.import_module("torch._inductor.config")
    around = virtualized.graph
    lowering = graph(
        gm=choice.gm,
        example_inputs=choice.example_inputs,
        shape_env=around._shape_env,
        is_inference=around.is_inference,
        is_backward=around.is_backward,
        name=DECOMPOSE_K,
    )
    with virtualized.set_graph_handler(lowering), config.patch(_LOWERING):
        lowering.run(*choice.example_inputs)
        module = lowering.codegen()[0]
    # The path says where this process keeps its files, and nothing about the kernel.
    return re.sub(r"(?m)^# kernel path: .*\n", "", str(module.value))


def compile_kernels(source: str) -> None:
    """Compile a module's kernels into Triton's cache, and load none.

    Raises:
        Exception: whatever Triton or its assembler raises.
    """
    owner, name, whole = private(_ASYNC_COMPILE, "AsyncCompile.triton")
    load = private(_ASYNC_COMPILE, "_load_triton_kernel_from_source")[2]

    def triton(_: Any, kernel_name: str, source_code: str, **__: Any) -> Any:
        kernel = load(kernel_name, source_code)
        kernel.precompile(warm_cache_only=True)
        return kernel

    setattr(owner, name, triton)
    try:
        private(CODECACHE, "PyCodeCache.load")[2](source)
    finally:
        setattr(owner, name, whole)


def load_call(source: str) -> Call:
    """Return the function of a module whose kernels are in Triton's cache."""
    config: Any = importlib.import_module("torch._inductor.config")
    # In this very process, where a kernel that was not compiled is seen.
    with config.patch(compile_threads=1):
        call: Call = private(CODECACHE, "PyCodeCache.load")[2](source).call
    return call
