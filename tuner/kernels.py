"""Make one candidate callable on a GEMM's operands, packed as serving packs them."""

import importlib
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flytune.caches.compat import private
from flytune.tuner.candidate import ATEN, CPP, Candidate, CandidateList, Packing
from flytune.tuner.operands import POSITIONS, Operands, UnsupportedError

if TYPE_CHECKING:
    import torch

Kernel = Callable[[], "torch.Tensor"]
"""One launch; returns the output that it wrote."""


def make_kernels(
    candidate: Candidate, offered: CandidateList, operands: Operands, copies: int
) -> tuple[Kernel, ...]:
    """Return the candidate over `copies` copies of its weight.

    Each copy is a buffer of its own, so that a caller who takes turns reads the weight
    from memory as serving does. Activations and outputs are shared and stay warm.

    Raises:
        UnsupportedError: the backend is not one that runs on this device.
    """
    if candidate.backend == ATEN:
        return _aten(candidate, offered, operands, copies)
    if candidate.backend == CPP and candidate.packing is not None:
        return _cpp(candidate, candidate.packing, operands, copies)
    raise UnsupportedError(f"no runner for backend: {candidate.backend}")


def _aten(
    candidate: Candidate, offered: CandidateList, operands: Operands, copies: int
) -> tuple[Kernel, ...]:
    import torch

    _register_onednn()
    request = pickle.loads(candidate.request)
    linear = offered.op.startswith("linear")
    kernels = []
    out = _poisoned(operands) if request.has_out_variant else None
    for copy in range(copies):
        b = operands.b
        if linear:
            rows = operands.a.shape[0]
            b = torch.ops.mkldnn._reorder_linear_weight(b.t().contiguous(), rows)
        elif copy:
            b = b.clone(memory_format=torch.preserve_format)
        inputs = _in_order(offered, operands, b)
        launch = request.make_run_fn(*inputs, out=out)
        if out is None:
            kernels.append(launch)
        else:
            kernels.append(_returning(launch, out))
    return tuple(kernels)


def _in_order(
    offered: CandidateList, operands: Operands, b: "torch.Tensor"
) -> list["torch.Tensor"]:
    """Return the tensors in the order of Inductor's list, `b` in B's place."""
    values = (operands.a, b, operands.bias, operands.other)
    placed = zip(POSITIONS[offered.op], values, strict=True)
    return [v for at, v in sorted(placed, key=lambda pair: pair[0]) if v is not None]


def _cpp(
    candidate: Candidate, packing: Packing, operands: Operands, copies: int
) -> tuple[Kernel, ...]:
    import torch

    request = pickle.loads(candidate.request)
    pack = _packer(packing, operands)
    packed = pack(operands.b)
    extra = [t for t in (operands.bias, operands.other) if t is not None]
    out = _poisoned(operands)
    kernels = []
    for copy in range(copies):
        b = packed.clone() if copy else packed
        launch = request.make_run_fn(operands.a, b, *extra, out=out)
        kernels.append(_returning(launch, out, keep=(b, *extra)))
    if operands.is_weight or not packing.blocked:
        return tuple(kernels)
    # B of a bmm is an activation: serving blocks it at every call, in one copy.
    view = _blocked_view(packing, operands.b)
    if view is None:
        raise UnsupportedError("no runner for a bmm whose B is padded or interleaved")
    blocks: torch.Tensor = packed.view(view.shape)

    def blocked_launch() -> "torch.Tensor":
        blocks.copy_(view)
        return kernels[0]()

    return (blocked_launch,)


def _packer(
    packing: Packing, operands: Operands
) -> Callable[["torch.Tensor"], "torch.Tensor"]:
    """Return the template's own packing of B; it works on tensors as on nodes."""
    import torch

    module = {
        "CppGemmTemplate": "torch._inductor.codegen.cpp_gemm_template",
        "CppBmmTemplate": "torch._inductor.codegen.cpp_bmm_template",
    }.get(packing.template)
    if module is None:
        raise UnsupportedError(f"no runner for template: {packing.template}")
    template = private(module, packing.template)[2]
    micro = _micro_gemm(packing, operands.a.dtype)

    def pack(b: "torch.Tensor") -> "torch.Tensor":
        if not packing.blocked:
            return b.contiguous()
        inputs, _ = template.prep_weight([operands.a, b], None, micro, packing.blocked)
        packed: torch.Tensor = inputs[1].contiguous()
        return packed

    return pack


def _micro_gemm(packing: Packing, dtype: "torch.dtype") -> Any:
    import torch

    where = "torch._inductor.codegen.cpp_micro_gemm"
    kind = private(where, packing.micro_gemm)[2]
    make = private("torch._inductor.codegen.cpp_utils", "GemmBlocking")[2]
    return kind(
        "micro_gemm",
        dtype,
        dtype,
        torch.float32,
        torch.float32,
        make(*packing.register_blocking),
    )


def _blocked_view(packing: Packing, b: "torch.Tensor") -> "torch.Tensor | None":
    """Return B [batch, K, N] seen as blocks [batch, N / block, K, block]."""
    block = packing.register_blocking[1]
    batch, k, n = b.shape
    if n % block or "AMX" in packing.micro_gemm or "VNNI" in packing.micro_gemm:
        return None
    return b.unflatten(-1, (n // block, block)).transpose(1, 2)


def _poisoned(operands: Operands) -> "torch.Tensor":
    """Return an output that is NaN wherever a kernel writes nothing."""
    import torch

    return torch.full(operands.reference.shape, torch.nan, dtype=operands.a.dtype)


def _returning(
    launch: Callable[[], Any], out: "torch.Tensor", keep: tuple[Any, ...] = ()
) -> Kernel:
    """Return a launch that gives its output, and keeps alive what it points to."""

    def kernel(_keep: tuple[Any, ...] = keep) -> "torch.Tensor":
        launch()
        return out

    return kernel


def _register_onednn() -> None:
    """Make oneDNN's linears known to Inductor, which does so at its first lowering."""
    select = importlib.import_module("torch._inductor.select_algorithm")
    # Importing the lowerings registers them against the modules loaded before.
    importlib.import_module("torch._inductor.lowering")
    if not hasattr(select.extern_kernels, "_linear_pointwise"):
        private("torch._inductor.mkldnn_lowerings", "register_onednn_fusion_ops")[2]()
