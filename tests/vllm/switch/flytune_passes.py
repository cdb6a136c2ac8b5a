"""What the forward passes of an engine's process ask for, by module, for tests.

With SWITCH_PASSES naming a folder, each process writes `RANK.jsonl` into it: a line for
each pass that is unlike those before, with the GEMMs of each module and their calls.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flytune.caches.hook.flytune_capture import mode_of


class Passes:
    """The GEMMs in each call of a module that no other module made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path: list[nn.Module] = []
        self.names: dict[nn.Module, str] = {}
        """Of modules themselves: the id of one that has gone may be another's."""
        self.calls: Counter[tuple[Any, ...]] = Counter()
        self.done: set[frozenset[tuple[Any, ...]]] = set()

    def enter(self, module: nn.Module, _inputs: Any) -> None:
        """Take a module that is called as the one that asks."""
        if not self.path:
            # The model comes before its parts are called by themselves, as the head is.
            for name, each in module.named_modules():
                self.names.setdefault(each, name or type(each).__name__)
        self.path.append(module)

    def leave(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        """End a module's call, and a pass with it where it was the outermost."""
        self.path.pop()
        if self.path or not self.calls:
            return
        gemms = frozenset(self.calls.items())
        self.calls.clear()
        if gemms not in self.done:
            self.done.add(gemms)
            self._write(gemms)

    def add(self, key: Any, _row: Any) -> None:
        """Count a GEMM, as `flytune_capture` gives it."""
        op, a, _, a_dtype, b, *rest = key
        batch, bias = (a[0] if len(a) == 3 else 1), rest[-1] or op == "aten::addmm"
        self._count(op.partition("::")[2], (a[-2], b[-1], a[-1]), batch, a_dtype, bias)

    def add_experts(self, w13: Any, w2: Any, picked: Any) -> None:
        """Count the two GEMMs of routed experts, which one operator holds.

        Args:
            w13: [experts, outputs, inputs], as is `w2`.
            picked: [tokens, experts a token].
        """
        for weight in (w13, w2):
            groups, n, k = weight.shape
            sizes = (picked.numel(), n, k)
            self._count("grouped_mm", sizes, groups, weight.dtype, False)

    def _count(
        self, op: str, sizes: tuple[int, ...], batch: int, dtype: Any, bias: bool
    ) -> None:
        name = self.names.get(self.path[-1], "") if self.path else ""
        kind = str(dtype).removeprefix("torch.")
        self.calls[name, op, *sizes, batch, kind, bias] += 1

    def _write(self, gemms: frozenset[tuple[Any, ...]]) -> None:
        distributed = torch.distributed
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        rows = sorted([*key, calls] for key, calls in gemms)
        with (self.folder / f"{rank}.jsonl").open("a") as file:
            file.write(f"{json.dumps(rows)}\n")


def watch(folder: Path) -> None:
    """Begin to write what this process's passes ask for."""
    passes = Passes(folder)
    nn.modules.module.register_module_forward_pre_hook(passes.enter)
    nn.modules.module.register_module_forward_hook(passes.leave, always_call=True)
    _watch_experts(passes)
    mode_of(torch, passes)().__enter__()


def _watch_experts(passes: Passes) -> None:
    """Look at the arguments of the operator that holds a mixture's GEMMs on a CPU."""
    import vllm.model_executor.layers.fused_moe.experts.cpu_moe as cpu_moe

    plain = cpu_moe.cpu_fused_moe

    def watched(output: Any, rows: Any, w13: Any, w2: Any, *more: Any) -> Any:
        passes.add_experts(w13, w2, more[3])
        return plain(output, rows, w13, w2, *more)

    cpu_moe.cpu_fused_moe = watched
