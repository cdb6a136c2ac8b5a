"""What a row of the table of families says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flytune.shapes.fields import Fields
from flytune.shapes.gemm import Engine
from flytune.shapes.linears import Linear

if TYPE_CHECKING:
    from flytune.shapes.model_config import ModelConfig

Value = int | tuple[object, ...]
Layout = Callable[["ModelConfig", Engine], tuple[Linear, ...]]
"""Lists a model's linears in the order a forward pass calls them."""


def _no_more(_fields: Fields) -> Mapping[str, Value]:
    return {}


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture takes from its config, its defaults and its linears."""

    architecture: str
    """The entry of the config's `architectures`."""
    model_types: tuple[str, ...]
    """The config's `model_type`, in each spelling."""
    linears: Layout
    kv_heads: int | Callable[[Fields], int] | None = None
    """`num_key_value_heads` where the config omits it; None: the attention heads; a
    function where the family tells it in its own way."""
    head_dim: int | None = None
    """`head_dim` where the config omits it; None: hidden_size / attention heads."""
    free_head_dim: bool = True
    """False where the engines always take hidden_size / attention heads."""
    read: Callable[[Fields], Mapping[str, Value]] = _no_more
    """Reads what this family alone has; `ModelConfig.extra` returns it."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The config's own names of the fields of `ModelConfig`."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Sizes that real configs omit, as transformers' class has them."""
    flags: Mapping[str, bool] = field(default_factory=dict)
    """As above, of true and false."""
    inner: int = 0
    """`intermediate_size` where the config omits it, in multiples of hidden_size."""
    nested: tuple[str, ...] = ()
    """`model_type` of the text model, in each spelling, where the config holds it as
    `text_config`; the first where that does not say."""
    untraced: tuple[str, ...] = ()
    """Of `model_types`, those that transformers runs by remote code alone."""
    eager: bool = True
    """Whether its attention is the plain one, whose bmm are known."""


def text_alone(family: Family, architecture: str) -> Family:
    """Return the row of a nested family's text model where it is a model by itself."""
    return replace(
        family, architecture=architecture, model_types=family.nested, nested=()
    )
