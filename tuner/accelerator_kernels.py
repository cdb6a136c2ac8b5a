"""Make one candidate callable on an accelerator, from files that builders compiled."""

import importlib
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flytune.caches.compat import private
from flytune.caches.inductor import CODECACHE
from flytune.tuner.builder import load_triton, source_path
from flytune.tuner.candidate import ATEN, FLYDSL, TRITON, Candidate
from flytune.tuner.kernels import Kernel, returning
from flytune.tuner.operands import UnsupportedError
from flytune.tuner.subgraph import DECOMPOSE_K, load_call

if TYPE_CHECKING:
    import torch

MakeLaunch = Callable[[Sequence["torch.Tensor"], "torch.Tensor"], Kernel]
"""Binds a candidate to its inputs, in Inductor's order, and to the output."""


def make_launch(candidate: Candidate) -> MakeLaunch:
    """Return what makes launches of a candidate.

    A launch of Triton's is bound to the stream that is current when it is made, one of
    FlyDSL's asks for it at each call.

    Raises:
        UnsupportedError: the backend is not one that runs on an accelerator.
        Exception: whatever loading the kernel raises.
    """
    if candidate.backend == DECOMPOSE_K:
        call = load_call(candidate.source)
        return lambda inputs, _: lambda: call([*inputs])[0]
    if candidate.backend not in (ATEN, TRITON, FLYDSL):
        raise UnsupportedError(f"no runner for backend: {candidate.backend}")
    request = pickle.loads(candidate.request)
    if candidate.backend == TRITON:
        load_triton(candidate)
        request.module_path = str(source_path(request.module_cache_key))
    elif candidate.backend == FLYDSL:
        # As Inductor's own request did where it was made, in that cache directory.
        write = private(CODECACHE, "PyCodeCache.write")[2]
        request.module_cache_key, request.module_path = write(request.source_code)
    else:
        # Inductor finds a library's kernel by a name that lowerings register.
        importlib.import_module("torch._inductor.lowering")

    def make(inputs: Sequence["torch.Tensor"], out: "torch.Tensor") -> Kernel:
        launch: Kernel = request.make_run_fn(*inputs, out=out)
        # Without an out variant the library returns an output of its own.
        return returning(launch, out) if _writes(request) else launch

    return make


def load_driver() -> None:
    """Make Triton ready to launch.

    It compiles a module in C for that where it finds none; done in a candidate's check,
    it would pass for the candidate's own.
    """
    private("triton.runtime", "driver")[2].active.get_current_target()


def _writes(request: Any) -> bool:
    return bool(getattr(request, "has_out_variant", True))
