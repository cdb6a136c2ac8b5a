"""The program that is baked and verified: a model's parts, or the model as one graph.

The layers of a model share one graph when they are compiled one by one, so that one
layer of random weights bakes all of them. As one graph the model has all its layers,
each with parameters of its own that lie in the memory of the first one's: what a graph
holds of them is their sizes. Sequences have no cache of earlier keys: one sequence of
`tokens` tokens is one forward pass.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from flytune.shapes.errors import FlytuneError

if TYPE_CHECKING:
    import torch

# Prime, so that the repeated random values meet no tile's size.
PATTERN = 4_194_301
WEIGHT_STD = 0.02

Bake = Literal["layers", "model"]
"""What one graph holds: a decoder layer and the head apart, or the whole model."""

BAKED = frozenset(
    f"{name}ForCausalLM" for name in ("Llama", "Mistral", "Qwen2", "Qwen3")
)
"""Architectures whose layer and head are called as `_parts` calls them."""


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """What to build; enough to build it again in another process."""

    config: Mapping[str, Any]
    """The model's `config.json`, whole."""
    attention: str
    """"sdpa" or "eager", as transformers names them."""
    dtype: str = "bfloat16"
    """torch's name of the weights' type."""
    kind: str = "transformers"
    bake: Bake = "layers"

    @property
    def depth(self) -> int:
        """Decoder layers that one call passes through at most."""
        return int(self.config["num_hidden_layers"]) if self.bake == "model" else 1

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's form."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "ProgramSpec":
        """Read the manifest's form.

        Raises:
            FlytuneError: it is not the form of a program that this version runs.
        """
        if row.get("kind") != "transformers":
            raise FlytuneError(f"unknown kind of program: `{row.get('kind')}`")
        try:
            return cls(**row)
        except TypeError as error:
            raise FlytuneError(f"program is malformed: {error}") from error


@dataclass(frozen=True, slots=True)
class Piece:
    """One separately compiled part of a program."""

    name: str
    module: "torch.nn.Module"
    inputs: Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]]
    """(tokens, seed) -> the arguments of one call."""


_HEAD_PATHS = {"0": "model.norm", "1": "lm_head"}
_LAYER = re.compile(r"(?<=\blayers)\.\d+\b")


def model_path(piece: str, module: str) -> str:
    """Return a module's path in the whole model from its path in a piece.

    Layers are one to the tuner: their number is "*".
    """
    if piece == "head":
        return _HEAD_PATHS.get(module, module)
    if piece == "model":
        return _LAYER.sub(".*", module)
    return f"model.layers.*.{module}" if module else "model.layers.*"


def build_program(
    spec: ProgramSpec, *, seed: int, device: str = "cpu"
) -> Iterator[Piece]:
    """Yield the parts that are compiled apart, with random weights.

    Each piece takes memory when it is yielded: a caller who drops it before the next
    holds the weights of one alone.

    Args:
        spec: The model, its attention, and what one graph holds.
        seed: Of the weights.
        device: torch's type of the device that the pieces are on.

    Raises:
        FlytuneError: transformers is absent, or cannot build the model.
    """
    import torch

    # An index, or torch would ask the driver for the current device.
    on = torch.device(device) if device == "cpu" else torch.device(device, 0)
    if spec.bake == "model":
        yield _whole(spec, seed, on)
    else:
        yield from _parts(spec, seed, on)


def _parts(spec: ProgramSpec, seed: int, on: "torch.device") -> Iterator[Piece]:
    """Yield the decoder layer, then the head."""
    import torch

    model, config = _meta_model(spec)
    base = model.model
    rotary = type(base.rotary_emb)(config=config)

    def layer_inputs(tokens: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = _hidden(config, tokens, seed)
        positions = torch.arange(tokens)[None]
        mask = _causal_mask(spec, tokens, hidden.dtype)
        return (hidden.to(on),), {
            "position_embeddings": tuple(p.to(on) for p in rotary(hidden, positions)),
            "position_ids": positions.to(on),
            "attention_mask": None if mask is None else mask.to(on),
        }

    def head_inputs(tokens: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (_hidden(config, tokens, seed).to(on),), {}

    layers = base.layers
    yield Piece("layer", _materialised(layers.pop(0), seed, on), layer_inputs)
    head = torch.nn.Sequential(base.norm, model.lm_head)
    del model, base, layers
    yield Piece("head", _materialised(head, seed, on), head_inputs)


def _whole(spec: ProgramSpec, seed: int, on: "torch.device") -> Piece:
    """Return the model itself, called with token ids as transformers calls it."""
    import torch

    model, config = _meta_model(spec)
    rotary = type(model.model.rotary_emb)(config=config)
    _materialised(model, seed, on)
    model.tie_weights()
    # Its frequencies are computed, not loaded.
    model.model.rotary_emb = rotary.to(on)

    def inputs(tokens: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        generator = torch.Generator().manual_seed(seed + tokens)
        ids = torch.randint(config.vocab_size, (1, tokens), generator=generator)
        return (), {"input_ids": ids.to(on), "use_cache": False}

    return Piece("model", model, inputs)


def _meta_model(spec: ProgramSpec) -> tuple[Any, Any]:
    """Return (model on the meta device, its config); the parts have one layer."""
    import torch

    try:
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM
    except ImportError as error:
        raise FlytuneError(
            "running a model's program needs the build extra",
            hint="pip install 'flytune[build]'",
        ) from error

    raw = dict(spec.config)
    config = CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
    if spec.bake == "layers":
        config.num_hidden_layers = 1
    config._attn_implementation = spec.attention
    dtype = getattr(torch, spec.dtype)
    config.dtype = dtype
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False), config


def _materialised(
    module: "torch.nn.Module", seed: int, device: "torch.device"
) -> "torch.nn.Module":
    """Return a meta module with memory and random weights.

    Parameters of numbered layers lie in the memory of the first layer's.
    """
    import torch
    from torch._subclasses import FakeTensor

    made: dict[tuple[str, torch.Size], torch.Tensor] = {}
    # Not `to_empty`, which cannot put a fake tensor in a fake tensor's place.
    for name, on_meta in tuple(module.named_parameters()):
        owner, _, own_name = name.rpartition(".")
        place = (_LAYER.sub(".*", name), on_meta.shape)
        if place not in made:
            made[place] = torch.empty_like(on_meta, device=device)
        parameter = torch.nn.Parameter(made[place], requires_grad=False)
        setattr(module.get_submodule(owner), own_name, parameter)
    for at, ((name, _), weight) in enumerate(made.items()):
        if isinstance(weight, FakeTensor):
            break  # it has no values
        if weight.dim() == 1 and not name.endswith("bias"):
            weight.fill_(1.0)
        else:
            fill_random(weight, seed=seed + at, std=WEIGHT_STD)
    return module


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


def _hidden(config: Any, tokens: int, seed: int) -> "torch.Tensor":
    import torch

    generator = torch.Generator().manual_seed(seed + tokens)
    values = torch.randn(1, tokens, config.hidden_size, generator=generator)
    return values.to(config.dtype)


def _causal_mask(
    spec: ProgramSpec, tokens: int, dtype: "torch.dtype"
) -> "torch.Tensor | None":
    """Return the additive mask that eager attention needs; sdpa makes its own."""
    import torch

    if spec.attention != "eager":
        return None
    lowest = torch.finfo(dtype).min
    full = torch.full((tokens, tokens), lowest, dtype=dtype)
    return torch.triu(full, diagonal=1)[None, None]
