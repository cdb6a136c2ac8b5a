"""Memory and random weights for a model that was built on the meta device."""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Prime, so that the repeated random values meet no tile's size.
PATTERN = 4_194_301
WEIGHT_STD = 0.02
LAYER = re.compile(r"(?<=\blayers)\.\d+\b|(?<=\bh)\.\d+\b")
"""The number of a layer within a module's path."""


def materialise(
    module: "torch.nn.Module", model: Any, *, seed: int, device: "torch.device"
) -> "torch.nn.Module":
    """Return a meta module with memory, random weights and its computed buffers.

    Parameters of numbered layers lie in the memory of the first layer's.

    Args:
        module: The model or a part of it.
        model: transformers' own, which knows how its buffers are computed.
        seed: Of the weights.
    """
    import torch
    from torch._subclasses import FakeTensor

    made: dict[tuple[str, torch.Size], torch.Tensor] = {}
    # Not `to_empty`, which cannot put a fake tensor in a fake tensor's place.
    for name, on_meta in tuple(module.named_parameters()):
        owner, _, own_name = name.rpartition(".")
        place = (LAYER.sub(".*", name), on_meta.shape)
        if place not in made:
            made[place] = torch.empty_like(on_meta, device=device)
        parameter = torch.nn.Parameter(made[place], requires_grad=False)
        setattr(module.get_submodule(owner), own_name, parameter)
    _compute_buffers(module, model, device)
    for at, ((name, _), weight) in enumerate(made.items()):
        if isinstance(weight, FakeTensor):
            break  # it has no values
        if weight.dim() == 1 and not name.endswith("bias"):
            weight.fill_(1.0)
        else:
            fill_random(weight, seed=seed + at, std=WEIGHT_STD)
        if weight.dim() == (2 if name.endswith("bias") else 3):
            # Experts: where two are nearly as good a rounding decides, and eager's own
            # may be the other. Being the same they give the same.
            weight[1:] = weight[0].clone()
    return module


def _compute_buffers(
    module: "torch.nn.Module", model: Any, device: "torch.device"
) -> None:
    """Give buffers the values that transformers computes: no checkpoint has them."""
    import torch

    for part in module.modules():
        on_meta = {n: b for n, b in part._buffers.items() if b is not None}
        for name, buffer in on_meta.items():
            part._buffers[name] = torch.zeros_like(buffer, device=device)
        if on_meta:
            # Before the weights are filled: it may touch those of the module too.
            model._init_weights(part)


def fill_random(tensor: "torch.Tensor", *, seed: int, std: float) -> None:
    """Fill a dense tensor with normal values, cheaply even for gigabytes.

    The values repeat after `PATTERN` elements, which meets no tile's size.
    """
    import torch

    flat = tensor.view(-1)
    count = min(PATTERN, flat.numel())
    generator = torch.Generator().manual_seed(seed)
    pattern = (torch.randn(count, generator=generator) * std).to(flat)
    for start in range(0, flat.numel(), count):
        part = flat[start : start + count]
        part.copy_(pattern[: part.numel()])
