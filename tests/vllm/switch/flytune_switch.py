"""A plugin of vLLM's for tests: its CPU platform compiles as its GPU platforms do.

With SWITCH_PASSES it writes what forward passes ask for, as `flytune_passes` says.
With SWITCH_BACKEND=vllm the engine keeps the compile backend that it would have
on a GPU, where the CPU platform takes torch's own, and linears are aten's, as there.
"""

import os
import sys
from pathlib import Path
from typing import Any


def register() -> None:
    """Switch this process, once; vLLM calls it in each one of an engine."""
    if os.environ.get("SWITCH_BACKEND") == "vllm":
        _plain_linears()
        _keep_backend()
    if folder := os.environ.get("SWITCH_PASSES"):
        import flytune_passes

        flytune_passes.watch(Path(folder))


def _plain_linears() -> None:
    import torch
    import vllm.model_executor.layers.utils as utils

    def plain(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.cpu_unquantized_gemm = utils.default_unquantized_gemm
    # Others hold it by name already.
    for module in list(sys.modules.values()):
        if "dispatch_cpu_unquantized_gemm" in getattr(module, "__dict__", {}):
            module.dispatch_cpu_unquantized_gemm = plain


def _keep_backend() -> None:
    from vllm.config import CompilationMode
    from vllm.platforms.cpu import CpuPlatform

    update = CpuPlatform.check_and_update_config.__func__

    def keeping(cls: Any, config: Any) -> None:
        before = config.compilation_config.mode
        update(cls, config)
        if before == CompilationMode.VLLM_COMPILE:
            config.compilation_config.mode = before

    CpuPlatform.check_and_update_config = classmethod(keeping)
