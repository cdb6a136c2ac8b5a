"""The program that is baked and verified: a model's parts, or the model as one graph.

The layers of a model share one graph when they are compiled one by one, so that one
layer of random weights bakes all of its kind. As one graph the model has all its
layers, each with parameters of its own that lie in the memory of the first one's: what
a graph holds of them is their sizes. In prefill one sequence of `tokens` tokens, with
no earlier keys, is one forward pass; in decoding each of `tokens` sequences brings one
token, and has a static cache of earlier ones.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from flytune.caches import decoding
from flytune.caches.calls import Arguments, Calls, moved, real_tensors
from flytune.caches.policy import ServingPolicy
from flytune.caches.weights import LAYER, materialise
from flytune.shapes.errors import FlytuneError

if TYPE_CHECKING:
    import torch

Bake = Literal["layers", "model"]
"""What one graph holds: a decoder layer and the head apart, or the whole model."""
Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """What to build; enough to build it again in another process."""

    config: Mapping[str, Any]
    """The model's `config.json`, whole."""
    attention: str
    """"sdpa", "eager", "flex_attention" or another, as transformers names them."""
    dtype: str = "bfloat16"
    """torch's name of the weights' type."""
    kind: str = "transformers"
    bake: Bake = "layers"
    prefill: tuple[int, ...] = ()
    """Tokens of one sequence; with `decode` empty too, the policy's counts."""
    decode: tuple[int, ...] = ()
    """Sequences that bring one token each."""
    context: int = 0
    """Positions of the static cache that decoding has."""

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
            # Bundles of earlier versions have neither.
            counts = {name: tuple(row.get(name, ())) for name in _COUNTS}
            return cls(**{**row, **counts})
        except TypeError as error:
            raise FlytuneError(f"program is malformed: {error}") from error


_COUNTS = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Piece:
    """One separately compiled part of a program."""

    name: str
    module: "torch.nn.Module"
    inputs: Callable[[int, int], Arguments]
    """(tokens, seed) -> the arguments of one call, as good as new."""
    tokens: tuple[int, ...] = ()
    """Counts that it is called with; where empty, the policy's."""
    outside: bool = False
    """Whether its inputs come from outside the model, not from a layer before it."""

    def counts(
        self, policy: ServingPolicy, *, between: bool = False
    ) -> tuple[int, ...]:
        """Return the counts that it is called with, the largest first.

        Args:
            between: Whether those in the middle between them are added.
        """
        counts = sorted(set(self.tokens or policy.tokens), reverse=True)
        if between:
            middle = {(a + b) // 2 for a, b in itertools.pairwise(counts)}
            counts = sorted({*counts, *middle}, reverse=True)
        return tuple(counts)


_HEAD_PATHS = {"0": "model.norm", "1": "lm_head"}
_DECODE = "decode "


def model_path(piece: str, module: str) -> str:
    """Return a module's path in the whole model from its path in a piece.

    Layers are one to the tuner: their number is "*".
    """
    part = piece.removeprefix(_DECODE)
    if part == "head":
        return _HEAD_PATHS.get(module, module)
    if part == "model":
        return LAYER.sub(".*", module)
    return f"model.layers.*.{module}" if module else "model.layers.*"


def build_program(
    spec: ProgramSpec, *, seed: int, device: str = "cpu"
) -> Iterator[Piece]:
    """Yield the parts that are compiled apart, with random weights.

    Each piece takes memory when it is yielded: a caller who drops it before the next
    holds the weights of one alone. The phases of one part share its weights.

    Args:
        spec: The model, its attention, what one graph holds, and the phases.
        seed: Of the weights.
        device: torch's type of the device that the pieces are on.

    Raises:
        FlytuneError: transformers is absent, or cannot build the model or run it so.
    """
    import torch

    # An index, or torch would ask the driver for the current device.
    on = torch.device(device) if device == "cpu" else torch.device(device, 0)
    if spec.bake == "model":
        yield from _whole(spec, seed, on)
    else:
        yield from _parts(spec, seed, on)


def lowered_counts(tokens: Iterable[int], *, dynamic: bool) -> tuple[int, ...]:
    """Return the counts whose graphs are lowered, the largest first.

    A dynamic graph is lowered once, for the largest; torch makes a size of one static
    all the same.
    """
    counts = sorted(set(tokens), reverse=True)
    if not dynamic:
        return tuple(counts)
    return (*counts[:1], *([1] if counts[-1:] == [1] and counts[1:] else []))


def count_kinds(spec: ProgramSpec) -> int:
    """Return how many kinds of layers a model has, run without their weights.

    Raises:
        FlytuneError: as `build_program`.
    """
    if spec.bake == "model" and spec.attention == "flex_attention":
        raise FlytuneError(
            "a whole model with flex_attention is several graphs, for transformers "
            "compiles its mask by itself",
            hint="--bake layers, or the command that serves by --bake-cmd",
        )
    model, config = meta_model(spec)
    if spec.decode:
        decoding.check(config, spec.context)
    return 1 if spec.bake == "model" else len(Calls(model, config).kinds)


def _parts(spec: ProgramSpec, seed: int, on: "torch.device") -> Iterator[Piece]:
    """Yield one decoder layer of each kind, then the head."""
    with real_tensors():
        model, config = meta_model(spec)
        calls = Calls(model, config)
    for kind in calls.kinds:
        layer = materialise(calls.take_layer(kind.first), model, seed=seed, device=on)
        yield from _phases(
            spec,
            *(kind.name, layer, _prefill_inputs(calls, kind.first, on)),
            decoding.layer_inputs(calls, layer, kind.first, spec.context, on),
        )
        del layer
    head = materialise(calls.head(), model, seed=seed, device=on)

    def of_prefill(tokens: int, seed: int) -> Arguments:
        return (calls.hidden(1, tokens, seed).to(on),), {}

    def of_decode(sequences: int, seed: int) -> Arguments:
        return (calls.hidden(sequences, 1, seed).to(on),), {}

    yield from _phases(spec, "head", head, of_prefill, of_decode)


def _prefill_inputs(calls: Calls, number: int, on: "torch.device") -> decoding.Inputs:
    def inputs(tokens: int, seed: int) -> Arguments:
        with real_tensors():
            call = calls.of_layer(number, calls.hidden(1, tokens, seed))
        return moved(call, on)

    return inputs


def _whole(spec: ProgramSpec, seed: int, on: "torch.device") -> Iterator[Piece]:
    """Yield the model itself, called with token ids as transformers calls it."""
    import torch

    with real_tensors():
        model, config = meta_model(spec)
    materialise(model, model, seed=seed, device=on)
    model.tie_weights()

    def of_prefill(tokens: int, seed: int) -> Arguments:
        generator = torch.Generator().manual_seed(seed + tokens)
        ids = torch.randint(config.vocab_size, (1, tokens), generator=generator)
        return (), {"input_ids": ids.to(on), "use_cache": False}

    of_decode = decoding.model_inputs(model, config, spec.context, on)
    yield from _phases(spec, "model", model, of_prefill, of_decode)


def _phases(
    spec: ProgramSpec,
    name: str,
    module: "torch.nn.Module",
    prefill: decoding.Inputs,
    decode: decoding.Inputs,
) -> Iterator[Piece]:
    """Yield a part as each phase of the program calls it."""
    outside = name == "model"
    if spec.prefill or not spec.decode:
        yield Piece(name, module, prefill, spec.prefill, outside)
    if spec.decode:
        yield Piece(_DECODE + name, module, decode, spec.decode, outside)


def meta_model(spec: ProgramSpec) -> tuple[Any, Any]:
    """Return (model on the meta device, its config).

    Raises:
        FlytuneError: transformers is absent or refuses the config or the attention.
    """
    import torch

    try:
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM
    except ImportError as error:
        raise FlytuneError(
            "running a model's program needs the build extra",
            hint="pip install 'flytune[build]'",
        ) from error

    raw = dict(spec.config)
    dtype = getattr(torch, spec.dtype)
    try:
        config = CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
        config = config.get_text_config(decoder=True)
        config.dtype = dtype
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=spec.attention
            )
    except (KeyError, ValueError, ImportError, AttributeError) as error:
        said = " ".join(str(error).split()).partition(". ")[0][:200]
        raise FlytuneError(
            f"transformers does not build the model with {spec.attention} attention: "
            f"{said}"
        ) from error
    return model.eval().requires_grad_(False), config
