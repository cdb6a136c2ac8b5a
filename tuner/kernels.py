"""Make one candidate callable on a GEMM's operands, packed as serving packs them."""

import importlib
import pickle
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from flytune.caches.compat import private
from flytune.tuner.candidate import ATEN, CPP, Candidate, CandidateList, Packing
from flytune.tuner.operands import LINEARS, POSITIONS, Operands, UnsupportedError

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
        return _cpp(candidate, candidate.packing, offered, operands, copies)
    raise UnsupportedError(f"no runner for backend: {candidate.backend}")


def _aten(
    candidate: Candidate, offered: CandidateList, operands: Operands, copies: int
) -> tuple[Kernel, ...]:
    _register_onednn()
    request = pickle.loads(candidate.request)
    out = _poisoned(offered, operands) if request.has_out_variant else None
    kernels = []
    for copy in range(copies):
        inputs = _library_inputs(offered, operands, copy)
        launch = request.make_run_fn(*inputs, out=out)
        kernels.append(launch if out is None else returning(launch, out))
    return tuple(kernels)


def _library_inputs(
    offered: CandidateList, operands: Operands, copy: int
) -> list["torch.Tensor"]:
    """Return the inputs with a weight of their own, packed as freezing packs it."""
    import torch

    a, b = operands.a, operands.b
    if offered.op == "packed_linear":
        weight = b.t()
        pack = torch.ops.mkl._mkl_reorder_linear_weight
        return [a, pack(weight, a.shape[0]), weight]
    if offered.op in LINEARS:
        weight = b.t().contiguous()
        b = torch.ops.mkldnn._reorder_linear_weight(weight, a.shape[0])
    elif copy:
        b = b.clone(memory_format=torch.preserve_format)
    return in_order(offered, operands, b)


def in_order(
    offered: CandidateList, operands: Operands, b: "torch.Tensor"
) -> list["torch.Tensor"]:
    """Return the tensors in the order of Inductor's list, `b` in B's place."""
    places = POSITIONS[offered.op]
    placed = {}
    for place in fields(places):
        value = b if place.name == "b" else getattr(operands, place.name)
        if value is not None:
            placed[getattr(places, place.name)] = value
    return [placed[at] for at in sorted(placed)]


def _cpp(
    candidate: Candidate,
    packing: Packing,
    offered: CandidateList,
    operands: Operands,
    copies: int,
) -> tuple[Kernel, ...]:
    request = pickle.loads(candidate.request)
    micro = _micro_gemm(packing, operands.a.dtype)
    packed = _pack(packing, micro, operands)
    extra = [t for t in (operands.bias, operands.other) if t is not None]
    out = _poisoned(offered, operands)
    kernels = []
    for copy in range(copies):
        b = packed.clone() if copy else packed
        launch = request.make_run_fn(operands.a, b, *extra, out=out)
        kernels.append(returning(launch, out, keep=(b, *extra)))
    if operands.is_weight or not packing.blocked:
        return tuple(kernels)

    # B of a bmm is an activation: serving blocks it at every call.
    def blocked_launch() -> "torch.Tensor":
        view = _blocks(packing, micro, operands.b)
        packed.view(view.shape).copy_(view)
        return kernels[0]()

    return (blocked_launch,)


def _pack(packing: Packing, micro: Any, operands: Operands) -> "torch.Tensor":
    """Return B as the template packs it; `prep_weight` takes tensors as well as nodes.

    Raises:
        UnsupportedError: the template is not one that runs here.
    """
    modules = {
        "CppGemmTemplate": "torch._inductor.codegen.cpp_gemm_template",
        "CppBmmTemplate": "torch._inductor.codegen.cpp_bmm_template",
    }
    if packing.template not in modules:
        raise UnsupportedError(f"no runner for template: {packing.template}")
    if not packing.blocked:
        return operands.b.contiguous()
    template = private(modules[packing.template], packing.template)[2]
    inputs, _ = template.prep_weight([operands.a, operands.b], None, micro, True)
    packed: torch.Tensor = inputs[1].contiguous()
    return packed


def _micro_gemm(packing: Packing, dtype: "torch.dtype") -> Any:
    """Return the micro kernel, which knows how deep it interleaves B's rows."""
    import torch

    where = "torch._inductor.codegen.cpp_micro_gemm"
    kind = private(where, packing.micro_gemm)[2]
    blocking = private("torch._inductor.codegen.cpp_utils", "GemmBlocking")[2]
    wide = torch.float32
    sizes = blocking(*packing.register_blocking)
    return kind("micro_gemm", dtype, dtype, wide, wide, sizes)


def _blocks(packing: Packing, micro: Any, b: "torch.Tensor") -> "torch.Tensor":
    """Return B [batch, K, N] seen as the template's blocks, so that one copy packs it.

    [batch, N / block, K, block]; for AMX [batch, N / block, K / 2, block, 2].
    """
    import torch

    block = packing.register_blocking[1]
    if b.shape[-1] % block:
        b = torch.nn.functional.pad(b, (0, -b.shape[-1] % block))
    view: torch.Tensor = b.unflatten(-1, (-1, block)).transpose(1, 2)
    depth = {"VNNI2": 2, "VNNI4": 4}.get(micro.get_b_layout().name, 1)
    if depth > 1:
        view = view.unflatten(2, (-1, depth)).transpose(-1, -2)
    return view


def _poisoned(offered: CandidateList, operands: Operands) -> "torch.Tensor":
    """Return an output that is NaN wherever a kernel writes nothing."""
    import torch

    dtype = getattr(torch, offered.output.dtype)
    out = torch.empty(operands.reference.shape, dtype=dtype)
    out.fill_(torch.nan)
    return out


def returning(
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
