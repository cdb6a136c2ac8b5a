"""Kernels of FlyDSL that torch runs outside of any graph: RMSNorm and top-k.

torch compiles each at its first call, by a size and a type (`torch/_native/ops`). They
are kept in the same directory as Inductor's, if `FLYDSL_RUNTIME_CACHE_DIR` names it.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from flytune.caches.compat import private
from flytune.caches.flydsl_kernel import entries_of

RMS_NORM = "rms_norm"
TOPK = "topk"
_NORM = "torch._native.ops.norm.flydsl_rmsnorm_fwd"
_TOPK = "torch._native.ops.topk.flydsl_kernels"
_RULES = "torch._native.ops.topk.flydsl_impl"
# Any number of rows is served by one kernel.
_ROWS = 2


@dataclass(frozen=True, slots=True)
class EagerKernel:
    """What one of torch's own kernels is compiled for."""

    op: str
    """"rms_norm" or "topk"."""
    n: int
    """Elements of a row."""
    dtype: str = "float32"
    k: int = 0
    """Of top-k."""
    deterministic: bool = False
    """Of top-k: under `torch.use_deterministic_algorithms`."""

    @property
    def name(self) -> str:
        """How a failure names it."""
        more = f" k={self.k}" if self.op == TOPK else ""
        strict = " deterministic" if self.deterministic else ""
        return f"eager {self.op} n={self.n}{more} {self.dtype}{strict}"

    def to_json(self) -> dict[str, Any]:
        """Return a form for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Self:
        """Read the form of `to_json`."""
        return cls(**row)

    def precompile(self) -> tuple[Path, ...]:
        """Compile it, or find it, by torch's own function; return its entry.

        The process must be one that launches nothing (`set_environment`).

        Raises:
            ValueError: torch has no such kernel.
            FlytuneError: torch or FlyDSL changed an interface.
            Exception: whatever FlyDSL raises.
        """
        if self.op == RMS_NORM:
            return entries_of(self._compile_norm)
        if self.op == TOPK:
            return entries_of(self._compile_topk)
        raise ValueError(f"no such kernel of torch's: {self.op}")

    def _compile_norm(self) -> None:
        import torch

        dtype = getattr(torch, self.dtype)
        with torch.device("cpu"):
            x = torch.empty(_ROWS, self.n, dtype=dtype)
            weight = torch.empty(self.n, dtype=dtype)
            scale = torch.empty(_ROWS)
        named = private(_NORM, "_dtype_str")[2](dtype)
        eps, stream = 1e-6, 0
        arguments = (x, weight, torch.empty_like(x), scale, _ROWS, eps, stream)
        _call(private(_NORM, "_compile_rmsnorm_fwd")[2], (self.n, named), arguments)

    def _compile_topk(self) -> None:
        import torch

        kind = private(_RULES, "_kernel_for")[2](self.k, self.n)
        with torch.device("cpu"):
            x = torch.empty(_ROWS, self.n)
            values = torch.empty(_ROWS, self.k)
            indices = torch.empty(_ROWS, self.k, dtype=torch.int64)
        stream = 0
        arguments = (x, values, indices, _ROWS, stream)
        if kind == "register":
            compiler = private(_TOPK, "_compile_register_topk")[2]
            _call(compiler, (self.n, self.k), arguments)
        elif kind == "radix":
            compiler = private(_TOPK, "_compile_radix_select_topk")[2]
            _call(compiler, (self.n, self.k, self.deterministic), arguments)
        else:
            raise ValueError(f"no such kernel of torch's: {self.name}")


def _call(
    compiler: Callable[..., Any], what: tuple[Any, ...], arguments: tuple[Any, ...]
) -> None:
    """Call one of torch's compile functions, which remember what they returned."""
    backend = private("flydsl.compiler.backends", "compile_backend_name")[2]()
    arch, device = os.environ["FLYDSL_GPU_ARCH"], 0
    clear = compiler.cache_clear  # type: ignore[attr-defined]
    clear()
    try:
        compiler(*what, arch, backend, device, compile_args=arguments)
    finally:
        # It is None, and would be launched.
        clear()
