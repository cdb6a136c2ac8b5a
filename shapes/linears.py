"""The linear layers of a decoder, whole: as an engine lays them out, before any rank
split. `families.py` says which a model has, `rules.py` how an engine splits them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Units:
    """One side of a linear, in the units that ranks divide."""

    total: int
    field: str
    """The config's field that counts them, for messages."""
    name: str = "features"
    size: int = 1
    """Elements of one, such as head_dim."""
    label: str = ""
    """The projection that these columns are in a merged linear, such as "q_proj"."""

    @property
    def elements(self) -> int:
        return self.total * self.size

    def words(self, units: int, total: int) -> str:
        """Say `units` of `total` units, as "4 of 64 heads x 128"."""
        words = f"{total} {self.name}"
        if units != total:
            words = f"{units} of {words}"
        return words if self.size == 1 else f"{words} x {self.size}"


@dataclass(frozen=True, slots=True)
class Experts:
    """The weights of a mixture of experts that one grouped GEMM reads."""

    total: int
    per_token: int
    """Experts that the router picks for a token."""
    takes_all: bool = False
    """True where each expert computes every token, in one bmm (Llama 4 in
    transformers), not only those that picked it."""
    clamped: bool = False
    """True where gate and up are joined by gpt-oss's own activation."""


@dataclass(frozen=True, slots=True)
class Linear:
    """`X [m, rows] @ W.T` with W [columns, rows]."""

    module: str
    columns: tuple[Units, ...]
    """The output side: several where the engine merges projections."""
    rows: Units
    """The input side."""
    style: str
    """The engine's own name of how it splits it: a row of its table in `rules.py`."""
    count: int
    """Calls in one forward pass of the whole model."""
    bias: bool = False
    experts: Experts | None = None
    batch: Units | None = None
    """Independent products, for a bmm over heads."""
    layout: str = "TN"
    dtype: str = ""
    """Of operands and result where it is not the model's, as a float32 router."""
    note: str = ""
    """What the rule says besides, such as "prefill"."""
    parts: tuple[str, ...] = ()
    """What the checkpoint calls what the engine merges here, such as "q_proj"; of
    experts, the linears of one. Empty where the checkpoint holds it as it is."""
    layers: tuple[int, ...] = ()
    """The decoder layers that have it; empty for all of them, and for the head."""
    kept: str = ""
    """Why no quantisation reaches it, such as "a router"."""


def in_layers(layers: Iterable[int], linears: tuple[Linear, ...]) -> tuple[Linear, ...]:
    """Return the linears as those of some layers alone, one call in each."""
    held = tuple(layers)
    return tuple(replace(each, layers=held, count=len(held)) for each in linears)
