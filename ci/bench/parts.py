"""Where a first call's time goes, from torch's own account of it."""

from collections.abc import Mapping

PARTS = ("ready", "dynamo", "aot", "inductor", "graphs", "kernels", "rest")
"""Placing or loading a cache; Dynamo; AOTAutograd with its cache; Inductor's lowering,
tuning and compiling; loading graphs; loading Triton's kernels; what is left, such as
guards, first launches and what is tuned by steps."""
# Names of `dynamo_timed` in torch 2.11 to 2.15, outermost first.
_FRAME = "_compile.compile_inner"
_BACKEND = "OutputGraph.call_user_compiler"
_INNER = "compile_fx_inner"
_CODEGEN = "fx_codegen_and_compile"
_LOAD = "AOTAutogradCache.inductor_load"
_KERNELS = (
    "TritonBundler.read_and_emit",
    "TritonBundler.load_cached_static_autotuners",
    "StaticAutotunerFuture.warm_precompile",
)


def parts_of(
    compile_s: Mapping[str, float], calls_s: float, ready_s: float
) -> dict[str, float]:
    """Return the seconds of each part; together they are those of the first calls.

    Args:
        compile_s: torch's seconds by its own names, a nested step's in both.
        calls_s: Of all first calls.
        ready_s: Of what was done before them.
    """
    frame, backend, inner, codegen, load = (
        compile_s.get(name, 0.0) for name in (_FRAME, _BACKEND, _INNER, _CODEGEN, _LOAD)
    )
    # A graph that is found lies in AOTAutograd's cache, or in Inductor's beneath it.
    loading = load + inner - codegen
    # Dynamo's own entries bring their graphs with them, and call no compiler.
    backend = max(backend, load + inner)
    kernels = min(sum(compile_s.get(name, 0.0) for name in _KERNELS), loading)
    seconds = {
        "ready": ready_s,
        "dynamo": frame - backend,
        "aot": backend - load - inner,
        "inductor": codegen,
        "graphs": loading - kernels,
        "kernels": kernels,
        "rest": calls_s - frame,
    }
    return {part: round(seconds[part], 3) for part in PARTS}
