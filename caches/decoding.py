"""Static caches of earlier keys and values, as decoding has them: half full.

A cache is made once for each number of sequences and filled anew before each call, as
a server keeps its own: Dynamo tells one cache from another.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flytune.caches.calls import Arguments, Calls, cache_argument, moved, real_tensors
from flytune.caches.weights import fill_random
from flytune.shapes.errors import FlytuneError

if TYPE_CHECKING:
    import torch

Inputs = Callable[[int, int], Arguments]
"""(sequences, seed) -> the arguments of one call."""


def layer_inputs(
    calls: Calls,
    layer: "torch.nn.Module",
    number: int,
    context: int,
    device: "torch.device",
) -> Inputs:
    """Return what makes the arguments of one layer's step of decoding.

    Args:
        layer: With memory, on the device: its first call makes the cache.
        number: Of the layer.
        context: Positions of the cache.
    """

    def inputs(sequences: int, seed: int) -> Arguments:
        noted = _static_cache(calls.config, context)
        with real_tensors():
            noted.early_initialization(
                *(sequences, 1, 1), dtype=calls.config.dtype, device="cpu"
            )
            _fill(noted, context, seed)
            hidden = calls.hidden(sequences, 1, seed)
            call = calls.of_layer(number, hidden, noted)
        return kept.call(
            sequences, seed, lambda cache: moved(call, device, of=noted, by=cache)
        )

    kept = _Kept(layer, calls.config, context)
    return inputs


def model_inputs(
    model: "torch.nn.Module", config: Any, context: int, device: "torch.device"
) -> Inputs:
    """Return what makes the arguments of a whole model's step of decoding.

    Args:
        model: With memory, on the device.
        context: Positions of the cache.
    """
    import torch

    name = cache_argument(model)

    def inputs(sequences: int, seed: int) -> Arguments:
        generator = torch.Generator().manual_seed(seed + sequences)
        ids = torch.randint(config.vocab_size, (sequences, 1), generator=generator)
        ids = ids.to(device)
        return kept.call(
            sequences, seed, lambda cache: ((), {"input_ids": ids, name: cache})
        )

    kept = _Kept(model, config, context)
    return inputs


def check(config: Any, context: int) -> None:
    """Refuse a model whose decoding is not one graph for all steps.

    Raises:
        FlytuneError: it keeps what is no static cache of `context` positions.
    """
    _static_cache(config, context)


class _Kept:
    """The caches of one piece, by their number of sequences."""

    def __init__(self, module: "torch.nn.Module", config: Any, context: int) -> None:
        self._module, self._config, self._context = module, config, context
        self._caches: dict[int, Any] = {}

    def call(
        self, sequences: int, seed: int, arguments: Callable[[Any], Arguments]
    ) -> Arguments:
        """Return the arguments with this piece's own cache, filled anew."""
        import torch

        if sequences not in self._caches:
            cache = _static_cache(self._config, self._context)
            positional, named = arguments(cache)
            # The layer knows its heads; the cache takes their sizes from the call.
            with torch.compiler.set_stance("force_eager"):
                self._module(*positional, **named)
            self._caches[sequences] = cache
        cache = self._caches[sequences]
        _fill(cache, self._context, seed)
        return arguments(cache)


def _static_cache(config: Any, context: int) -> Any:
    """Return an empty cache of so many positions.

    Raises:
        FlytuneError: a step of it would not be the same graph as the next.
    """
    import torch
    from transformers import StaticCache

    cache = StaticCache(config=config, max_cache_len=context)
    for layer in cache.layers:
        counted = getattr(layer, "cumulative_length", None)
        if layer.is_sliding or not isinstance(counted, torch.Tensor):
            raise FlytuneError(
                f"decoding is not baked with transformers' {type(layer).__name__}: "
                "it counts tokens in Python, and each step is a graph of its own",
                hint="build --phase prefill, or the command that serves, by --bake-cmd",
            )
    return cache


def _fill(cache: Any, context: int, seed: int) -> None:
    """Put the cache in the state after half of its positions, with random values."""
    from torch._subclasses import FakeTensor

    for at, layer in enumerate(cache.layers):
        if not layer.is_initialized or isinstance(layer.keys, FakeTensor):
            continue
        for tensor in (layer.keys, layer.values):
            fill_random(tensor, seed=seed + at, std=1.0)
        layer.cumulative_length.fill_(context // 2)
