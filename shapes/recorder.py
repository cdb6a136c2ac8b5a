"""Records the GEMMs that a torch module calls, each with the submodule that made it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from flytune.shapes.gemm import Op
from flytune.shapes.trace import TracedGemm

OPS: dict[Any, Op] = {
    torch.ops.aten.mm.default: "mm",
    torch.ops.aten.addmm.default: "addmm",
    torch.ops.aten.bmm.default: "bmm",
}

POINTWISE_MODULES = ("rotary_emb",)
"""Some transformers releases write the rotary angles as a matmul with k = 1: an outer
product, which compilers make pointwise and nobody tunes."""


def record_gemms(model: nn.Module, tokens: int) -> tuple[TracedGemm, ...]:
    """Return the GEMMs of one forward pass, in order.

    The input is `tokens` meta token ids as [1, tokens]; a cache is passed, as in
    generation, since without one transformers looks at values, which meta has not.
    """
    path: list[str] = []

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: path.append(name)

    def leave(*_: object) -> None:
        path.pop()

    for name, module in model.named_modules():
        module.register_forward_pre_hook(enter(name))
        module.register_forward_hook(leave, always_call=True)
    recorder = _Recorder(path)
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    with torch.no_grad(), recorder, _FusedAttention(recorder):
        model(input_ids=ids, use_cache=True)
    return tuple(recorder.gemms)


class _Recorder(TorchDispatchMode):
    def __init__(self, path: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path = path
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
        module = self.path[-1] if self.path else ""
        pointwise = module.rpartition(".")[2] in POINTWISE_MODULES
        if op is not None and not self.paused and not pointwise:
            *_, a, b = args
            self.gemms.append(_gemm(module, op, a, b, out))
        return out


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
        a_dtype=a_dtype,
        b_dtype=b_dtype,
        out_dtype=out_dtype,
        layouts=tuple(y + x for y in _letters(b) for x in _letters(a)),
        bias=op == "addmm",
    )


def _letters(matrix: torch.Tensor) -> str:
    """Return the BLAS letters that the last two strides allow: "N" row-major, "T"
    column-major, both where a size of 1 leaves its stride without meaning."""
    rows, columns = matrix.shape[-2:]
    row_stride, column_stride = matrix.stride()[-2:]
    row_major = "N" if column_stride == 1 or columns == 1 else ""
    column_major = "T" if row_stride == 1 or rows == 1 else ""
    return row_major + column_major
