"""Small modules whose GEMMs Inductor offers real candidates for.

`python small_modules.py RESULT` lowers them under the probe and writes their lists,
pickled; a list's `piece` names its module.
"""

import functools
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from flytune.caches.policy import cpu_policy
from flytune.caches.program import Piece
from flytune.tuner.probe import Probe

# Without freezing what follows a linear is not fused to it, and one kernel is offered.
UNFROZEN = ("bias", "add", "transposed bmm")
K = 256


class Linear(torch.nn.Module):
    """A linear and what follows it."""

    def __init__(
        self, dtype: torch.dtype, then: Callable[..., Any], n: int, bias: bool
    ) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(K, n, bias=bias, dtype=dtype)
        self.then = then

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.then(self.linear(x), *more)
        return result


class Transposed(torch.nn.Module):
    """A bmm whose B is a transposed view, as in attention."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b.transpose(1, 2))


class Plain(torch.nn.Module):
    """A bmm of tensors as they are."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)


def pieces() -> Iterator[Piece]:
    """Yield each module in the types that it has a list in."""
    gelu_tanh = functools.partial(functional.gelu, approximate="tanh")
    for dtype in (torch.bfloat16, torch.float32):
        fused = (("bias", lambda y: y, 128, True), ("gelu tanh", gelu_tanh, 128, True))
        for name, then, n, bias in (
            # In float32 nothing is fused to a linear: all have the list of `sub`.
            *(fused if dtype == torch.bfloat16 else ()),
            ("odd", lambda y: y, 100, False),
        ):
            linear = Linear(dtype, then, n, bias)
            yield _piece(name, linear, dtype, (0, K))
        for name, then in (
            ("add", lambda y, r: r + y),
            ("sub", lambda y, r: y - r),
        ):
            linear = Linear(dtype, then, 128, name == "add")
            yield _piece(name, linear, dtype, (0, K), (0, 128))
        yield _piece("transposed bmm", Transposed(), dtype, (4, 0, 64), (4, 48, 64))
        if dtype == torch.bfloat16:
            yield _piece("bmm", Plain(), dtype, (4, 0, 64), (4, 64, 40))


def _piece(
    name: str, module: torch.nn.Module, dtype: torch.dtype, *sizes: tuple[int, ...]
) -> Piece:
    """Return a piece; a size of 0 stands for the tokens."""

    def inputs(tokens: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        torch.manual_seed(seed)
        shapes = [[size or tokens for size in some] for some in sizes]
        return tuple(torch.randn(shape, dtype=dtype) for shape in shapes), {}

    kind = str(dtype).removeprefix("torch.")
    return Piece(f"{name} {kind}", module.eval().requires_grad_(False), inputs)


def main() -> None:
    """Lower every module and write the lists."""
    probe = Probe()
    probe.arm()
    for name in ("frozen", "unfrozen"):
        for piece in pieces():
            if name == "unfrozen" and not piece.name.startswith(UNFROZEN):
                continue
            tokens = (1, 17) if piece.name.startswith("add") else (17,)
            policy = cpu_policy(name, tokens=tokens, threads=2, attention="eager")
            policy.apply()
            with torch.no_grad():
                probe.run((piece,), policy, seed=0)
    Path(sys.argv[1]).write_bytes(pickle.dumps(tuple(probe.lists)))


if __name__ == "__main__":
    main()
