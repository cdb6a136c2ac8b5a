"""Records the GEMMs that a torch module calls, each with the submodule that made it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from flytune.shapes.gemm import Op
from flytune.shapes.strides import layouts
from flytune.shapes.trace import TracedGemm

OPS: dict[Any, Op] = {
    torch.ops.aten.mm.default: "mm",
    torch.ops.aten.addmm.default: "addmm",
    torch.ops.aten.bmm.default: "bmm",
    torch.ops.aten._grouped_mm.default: "grouped_mm",
}

POINTWISE_MODULES = ("rotary_emb",)
"""Some transformers releases write the rotary angles as a matmul with k = 1: an outer
product, which compilers make pointwise and nobody tunes."""

EXPERTS = "experts"
"""The module whose bmm are of weights; others' are attention's and its like's, which
serving has in kernels of their own unless its attention is eager."""

FUSED = "flytune_fused"
"""The attention that calls no GEMM, for models that cannot run torch's."""


def implementation(model_type: str, attention: str) -> str:
    """Return transformers' name of the attention that `model_type` is built with."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(CONFIG_MAPPING[model_type], None)
    if attention != "sdpa" or model is None or model._supports_sdpa:
        return attention
    AttentionInterface.register(FUSED, _fused)
    AttentionMaskInterface.register(FUSED, lambda *_, **__: None)
    return FUSED


def _fused(
    _module: nn.Module,
    query: torch.Tensor,
    _key: Any,
    value: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    """Return an output of attention, [batch, tokens, heads, head_dim] of any values."""
    batch, heads, tokens, _size = query.shape
    return query.new_empty(batch, tokens, heads, value.shape[-1]), None


def record_gemms(
    model: nn.Module, tokens: int, layers: int, *, plain: bool
) -> tuple[TracedGemm, ...]:
    """Return the GEMMs of one forward pass, in order, with one layer of each kind run.

    The input is `tokens` meta token ids as [1, tokens]; a cache is passed, as in
    generation, since without one transformers looks at values, which meta has not.

    Args:
        layers: How many the model has.
        plain: True where attention is eager, and its bmm count.

    Raises:
        ValueError: the model holds its layers in no list of that length.
    """
    counts = _run_one_of_each(model, layers)
    path: list[str] = []

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: path.append(name)

    def leave(*_: object) -> None:
        path.pop()

    for name, module in model.named_modules():
        module.register_forward_pre_hook(enter(name))
        module.register_forward_hook(leave, always_call=True)
    recorder = _Recorder(path, plain)
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    with torch.no_grad(), recorder, _FusedAttention(recorder):
        model(input_ids=ids, use_cache=True)
    return tuple(
        replace(gemm, count=next((n for at, n in counts if _is_in(gemm, at)), 1))
        for gemm in recorder.gemms
    )


def _is_in(gemm: TracedGemm, layer: str) -> bool:
    return gemm.module == layer or gemm.module.startswith(f"{layer}.")


def find_layers(model: nn.Module, count: int) -> tuple[str, nn.ModuleList]:
    """Return the path and the list of a model's layers.

    Raises:
        ValueError: the model holds its layers in no list of that length.
    """
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if not lists:
        raise ValueError(f"no list of {count} layers in {type(model).__name__}")
    return min(lists, key=lambda pair: pair[0].count("."))


def _run_one_of_each(model: nn.Module, layers: int) -> list[tuple[str, int]]:
    """Make all but the first layer of a kind return what the last one run did.

    Returns:
        (Name, layers of its kind) of each layer that still runs.
    """
    name, found = find_layers(model, layers)
    kinds: dict[object, list[int]] = {}
    for at, layer in enumerate(found):
        kinds.setdefault(kind_of(layer), []).append(at)
    output: list[Any] = [None]

    def keep(_module: nn.Module, _inputs: Any, made: Any) -> None:
        output[0] = made

    first = {each[0]: len(each) for each in kinds.values()}
    for at, layer in enumerate(found):
        if at in first:
            layer.register_forward_hook(keep)
        else:
            layer.forward = lambda *_, **__: output[0]
    return [(f"{name}.{at}", count) for at, count in first.items()]


def kind_of(layer: nn.Module) -> object:
    """Return what layers of one kind have in common: their modules and parameters."""
    modules = tuple((name, type(module)) for name, module in layer.named_modules())
    parameters = tuple(
        (name, tuple(parameter.shape), parameter.dtype)
        for name, parameter in layer.named_parameters()
    )
    return modules, parameters


class _Recorder(TorchDispatchMode):
    def __init__(self, path: list[str], plain: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path = path
        self.plain = plain
        self.gemms: list[TracedGemm] = []
        self.paused = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        op = OPS.get(func)
        if op is not None and not self.paused and self._counts(op):
            a, b = args[1:3] if op == "addmm" else args[:2]
            module = self.path[-1] if self.path else ""
            self.gemms.append(_gemm(module, op, a, b, out))
        return out

    def _counts(self, op: Op) -> bool:
        leaf = self.path[-1].rpartition(".")[2] if self.path else ""
        if leaf in POINTWISE_MODULES:
            return False
        return op != "bmm" or self.plain or leaf == EXPERTS


class _FusedAttention(TorchFunctionMode):
    """Stops recording in scaled_dot_product_attention: meta decomposes it into
    bmms, where every real device has one fused kernel."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.recorder.paused = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.recorder.paused = False


def _gemm(
    module: str, op: Op, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> TracedGemm:
    """Describe `a [..., m, k] @ b [..., k, n]`."""
    a_dtype, b_dtype, out_dtype = (
        str(tensor.dtype).removeprefix("torch.") for tensor in (a, b, out)
    )
    return TracedGemm(
        module=module,
        op=op,
        m=a.shape[-2],
        n=b.shape[-1],
        k=a.shape[-1],
        batch=a.shape[0] if a.ndim == 3 else 1,
        groups=b.shape[0] if op == "grouped_mm" else 0,
        a_dtype=a_dtype,
        b_dtype=b_dtype,
        out_dtype=out_dtype,
        layouts=layouts((a.shape, a.stride()), (b.shape, b.stride())),
        bias=op == "addmm",
    )
