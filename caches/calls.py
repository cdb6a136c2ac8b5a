"""How a model of transformers calls its decoder layers, and what runs after them.

The model itself says so: its layers are replaced by what notes their arguments, and one
forward pass of the rest is run, which takes no weights but a norm's. Masks, positions
and caches are then those that transformers makes for this architecture and attention.
"""

import contextlib
import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flytune.caches.weights import materialise
from flytune.shapes.errors import FlytuneError

if TYPE_CHECKING:
    import torch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Of one call: positional and named."""
_PLAIN = (bool, int, float, str, type(None))
# What tells a layer from the others of its kind.
_NUMBERS = ("layer_idx", "layer_id", "layer_number")


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers that are built alike, so that one stands for all."""

    first: int
    """The number of the first of them."""
    name: str
    """"layer", or "layer 5" where a model has several kinds."""


class Calls:
    """A model without the weights of its layers, which notes how it calls them."""

    def __init__(self, model: Any, config: Any) -> None:
        """Take a model on the meta device apart.

        Raises:
            FlytuneError: it has no list of layers, or does not run without them.
        """
        from flytune.shapes.recorder import find_layers

        self.config = config
        try:
            path, layers = find_layers(model, config.num_hidden_layers)
        except ValueError as error:
            raise FlytuneError(f"a model cannot be taken apart: {error}") from error
        self._base = model.get_submodule(path.rpartition(".")[0])
        self.kinds = _kinds(layers, getattr(config, "layer_types", None) or ())
        self._layers = {kind.first: layers[kind.first] for kind in self.kinds}
        self._stubs = [_stub(layer) for layer in layers]
        for at, stub in enumerate(self._stubs):
            layers[at] = stub
        self.model = model
        # Not the copies that are run: a head has memory of its own.
        self._children = dict(self._base.named_children())
        self._make_runnable(layers)
        self._tail = self._find_tail()

    def take_layer(self, number: int) -> "torch.nn.Module":
        """Return the first layer of a kind, on the meta device; each is taken once."""
        return self._layers.pop(number)

    def head(self) -> "torch.nn.Module":
        """Return what runs after the layers, and the output embeddings, on meta."""
        import torch

        after = [self._children[name] for name in self._tail]
        return torch.nn.Sequential(*after, self.model.get_output_embeddings())

    def hidden(self, sequences: int, tokens: int, seed: int) -> "torch.Tensor":
        """Return random hidden states, [sequences, tokens, hidden size], on the CPU."""
        import torch

        generator = torch.Generator().manual_seed(seed + sequences * tokens)
        sizes = (sequences, tokens, self.config.hidden_size)
        values = torch.randn(*sizes, generator=generator)
        return values.to(self.config.dtype)

    def of_layer(
        self, number: int, hidden: "torch.Tensor", cache: Any = None
    ) -> Arguments:
        """Return the arguments with which the model calls a layer, on the CPU.

        Args:
            hidden: Of `hidden`.
            cache: transformers' own, of earlier keys; without one they have none.
        """
        self._run(hidden, cache)
        arguments: Arguments = self._stubs[number].noted
        return arguments

    def _make_runnable(self, layers: "torch.nn.ModuleList") -> None:
        """Give copies of the small parts memory: all but layers and embeddings."""
        import torch

        for name, child in self._children.items():
            if child is layers or child is self.model.get_input_embeddings():
                continue
            made = materialise(
                *(copy.deepcopy(child), self.model), seed=0, device=torch.device("cpu")
            )
            setattr(self._base, name, made)

    def _find_tail(self) -> tuple[str, ...]:
        """Return the names of what runs after the layers, in its order.

        Raises:
            FlytuneError: the model does not run on hidden states alone.
        """
        ran: list[str] = []
        last = self._stubs[-1]
        hooks = [last.register_forward_hook(lambda *_: ran.clear())]
        for name, child in self._base.named_children():
            hooks.append(child.register_forward_hook(_noting(ran, name)))
        try:
            # In older code a layer returns a tuple, and its caller takes the first.
            for is_tuple in (False, True):
                for stub in self._stubs:
                    stub.returns_tuple = is_tuple
                said = self._try()
                if not said:
                    return tuple(ran)
        finally:
            for hook in hooks:
                hook.remove()
        name = type(self.model).__name__
        raise FlytuneError(f"{name} does not run without its layers: {said}")

    def _try(self) -> str:
        """Return why the model does not run as it is; "" where it does."""
        hidden = self.hidden(1, 2, seed=0)
        try:
            output = self._run(hidden, None)
        except Exception as error:
            # Any type: it is the architecture's own code, called in a way of ours.
            return " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return "" if output.shape == hidden.shape else "they return another form"

    def _run(self, hidden: "torch.Tensor", cache: Any) -> "torch.Tensor":
        import torch

        named = {} if cache is None else {cache_argument(self._base): cache}
        with real_tensors(), torch.compiler.set_stance("force_eager"):
            output = self._base(
                inputs_embeds=hidden, use_cache=cache is not None, **named
            )
        last: torch.Tensor = output[0]
        return last


def cache_argument(model: Any) -> str:
    """Return the name under which a model takes a cache of earlier keys."""
    taken = inspect.signature(model.forward).parameters
    return "cache" if "cache" in taken else "past_key_values"


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Make real tensors, also where a stand-in for an absent device makes none."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        yield


def moved(arguments: Arguments, device: "torch.device", **instead: Any) -> Arguments:
    """Return a call's arguments on a device.

    Args:
        instead: `of` is replaced by `by` wherever it stands.
    """
    import torch
    from torch.utils._pytree import tree_map

    def move(value: Any) -> Any:
        if instead and value is instead["of"]:
            return instead["by"]
        # A mask of blocks is no tensor, and moves as one does.
        is_mask = type(value).__name__ == "BlockMask"
        if isinstance(value, torch.Tensor) or is_mask:
            return value.to(device)
        return value

    def is_leaf(value: Any) -> bool:
        return type(value).__name__ == "BlockMask"

    found: Arguments = tree_map(move, arguments, is_leaf=is_leaf)
    return found


def _kinds(
    layers: "torch.nn.ModuleList", types: Sequence[str]
) -> tuple[LayerKind, ...]:
    from flytune.shapes.recorder import kind_of

    first: dict[object, int] = {}
    for at, layer in enumerate(layers):
        of_config = types[at] if at < len(types) else ""
        first.setdefault((kind_of(layer), _settings(layer), of_config), at)
    if len(first) == 1:
        return (LayerKind(0, "layer"),)
    return tuple(LayerKind(at, f"layer {at}") for at in first.values())


def _settings(layer: "torch.nn.Module") -> tuple[object, ...]:
    """Return the plain attributes of a layer and its parts, without its number."""
    return tuple(
        (path, name, value)
        for path, part in layer.named_modules()
        for name, value in sorted(vars(part).items())
        if isinstance(value, _PLAIN) and name not in _NUMBERS
    )


def _stub(layer: "torch.nn.Module") -> Any:
    """Return what stands for a layer, and looks like it to the model's loop."""
    import torch

    class Stub(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.returns_tuple = False
            self.noted: Arguments = ((), {})

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            self.noted = (args, kwargs)
            hidden = args[0] if args else kwargs["hidden_states"]
            return (hidden,) if self.returns_tuple else hidden

    stub = Stub()
    for name, value in vars(layer).items():
        if isinstance(value, _PLAIN) and not hasattr(stub, name):
            setattr(stub, name, value)
    return stub


def _noting(ran: list[str], name: str) -> Any:
    return lambda *_: ran.append(name)
