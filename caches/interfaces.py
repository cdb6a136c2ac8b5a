"""Every private interface of torch that a build or a verification goes through.

A torch that is newer than all that were tested is taken if it has them all; what has
changed is named before anything is built. Those of FlyDSL's parts, of devices that
stand in and of vLLM are checked where they are used.
"""

from flytune.caches.compat import private
from flytune.caches.inductor import CODECACHE, SCHEDULER
from flytune.caches.ledger import Ledger
from flytune.caches.ledger_hooks import SELECT, entry_points

_INDUCTOR = "torch._inductor"
_DYNAMO = "torch._dynamo"
_UNSTORED = "CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES"
PRIVATE = (
    (CODECACHE, "torch_key"),
    (CODECACHE, "get_path"),
    (CODECACHE, "CacheBase.get_local_cache_path"),
    (CODECACHE, "CacheBase.get_system"),
    (CODECACHE, "FxGraphCachePickler.__init__"),
    (CODECACHE, "PyCodeCache.cache_clear"),
    (CODECACHE, "PyCodeCache.load"),
    (CODECACHE, "PyCodeCache.load_by_key_path"),
    (CODECACHE, "PyCodeCache.write"),
    (SELECT, "AlgorithmSelectorCache"),
    (SELECT, "ExternKernelCaller"),
    (SELECT, "create_inputs_key"),
    (f"{_INDUCTOR}.async_compile", "AsyncCompile.triton"),
    (f"{_INDUCTOR}.async_compile", "_load_triton_kernel_from_source"),
    (f"{_INDUCTOR}.codegen.cpp_utils", "GemmBlocking"),
    (f"{_INDUCTOR}.codegen.subgraph", "SubgraphChoiceCaller"),
    # Each setting of a policy goes through these.
    (f"{_INDUCTOR}.config", "_config"),
    (f"{_DYNAMO}.config", "_config"),
    (f"{_INDUCTOR}.config", "save_config_portable"),
    (f"{_INDUCTOR}.cpu_vec_isa", "valid_vec_isa_list"),
    (f"{_INDUCTOR}.graph", "GraphLowering"),
    (f"{_INDUCTOR}.graph", "GraphLowering.compile_to_module"),
    (f"{_INDUCTOR}.mkldnn_lowerings", "register_onednn_fusion_ops"),
    (SCHEDULER, "Scheduler.speedup_by_fusion"),
    (f"{_INDUCTOR}.runtime.triton_compat", "triton_key"),
    (f"{_INDUCTOR}.runtime.triton_heuristics", "CachingAutotuner.precompile"),
    (f"{_INDUCTOR}.virtualized", "V"),
    (f"{_DYNAMO}.guards", "CheckFunctionManager.__init__"),
    (f"{_DYNAMO}.guards", _UNSTORED),
    (f"{_DYNAMO}.output_graph", "OutputGraph.install_global_by_id"),
    (f"{_DYNAMO}.package", "CompilePackage._add_function"),
    (f"{_DYNAMO}.package", "CompilePackage.add_import_source"),
    (f"{_DYNAMO}.utils", "compilation_time_metrics"),
    (f"{_DYNAMO}.utils", "counters"),
)


def check_interfaces() -> None:
    """Look for each of them in the torch that is installed, which is imported here.

    Raises:
        FlytuneError: one is not there, and is named.
    """
    private(SELECT, "AlgorithmSelectorCache")
    for module, path in (*PRIVATE, *entry_points(Ledger())):
        private(module, path)
