"""A model's config.json, read and checked: the fields that decide its GEMMs."""

import json
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from flytune.shapes.families import BY_ARCHITECTURE
from flytune.shapes.family import Family, Value
from flytune.shapes.fields import BY_HAND, MAX_LAYERS, ConfigError, Fields

QUANTISED = ("quantization_config", "compression_config")
"""What says how the weights are quantised; the second of older compressed-tensors."""
QUANT_SIDECAR = "hf_quant_config.json"
"""Where modelopt says that a model is quantised, in place of its config.json."""

MAX_CONFIG_BYTES = 4 * 2**20
_OF_BOTH = ("dtype", "torch_dtype", "tie_word_embeddings")
"""What a config with a text model in it may say of it outside."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The checked fields; what the config omits holds its family's default."""

    name: str
    source: str
    """Where it came from, for messages: a path, a hub id or `shipped`."""
    architecture: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    """Elements of one head; not hidden_size / num_attention_heads in many models."""
    vocab_size: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str
    """torch's name of the weights' dtype."""
    raw: str
    """The config as JSON, or the text model's in it, from which the traced model is
    built; without its quantization."""
    quantised: str = ""
    """How its weights are quantised, as "fp8"; nothing where they are not."""
    quantization: str = ""
    """What says so, as JSON, which is read when its GEMMs are asked for; nothing where
    they are not."""
    quantization_source: str = ""
    """Where that came from, where it is not the config itself."""
    own: tuple[tuple[str, Value], ...] = ()
    """What its family alone has, by name."""

    @property
    def family(self) -> Family:
        return BY_ARCHITECTURE[self.architecture]

    @property
    def traceable(self) -> bool:
        """Whether transformers has a model of it, without remote code."""
        return self.model_type not in self.family.untraced

    def extra(self, name: str) -> int:
        """Return a number that its family's reader has read."""
        value = dict(self.own)[name]
        assert isinstance(value, int)
        return value

    def rows(self, name: str) -> tuple[Any, ...]:
        """Return what its family's reader has read of each layer."""
        value = dict(self.own)[name]
        assert isinstance(value, tuple)
        return value


def read_config(path: Path, name: str) -> ModelConfig:
    """Read the config.json at `path` as the model `name`.

    Raises:
        ConfigError: the file is missing, unreadable or not JSON, or `parse_config`
            refuses it.
    """
    config = parse_config(_read(path), name=name, source=str(path))
    # The names that a downloaded folder and a file by itself have.
    for sidecar in (f"{path.stem}.{QUANT_SIDECAR}", QUANT_SIDECAR):
        beside = path.with_name(sidecar)
        # The config has the last word, as in vLLM: newer releases write both.
        if beside.exists() and not config.quantised:
            return replace(
                config,
                quantised=QUANT_SIDECAR,
                quantization=_read(beside),
                quantization_source=str(beside),
            )
    return config


def _read(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"not a regular file: `{path}`")
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"too large for a model config: `{path}`")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot read the config, {reason}: `{path}`") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config is not UTF-8 text: `{path}`") from error


def parse_config(text: str, *, name: str, source: str) -> ModelConfig:
    """Check the JSON `text` of a config.

    Raises:
        ConfigError: not one JSON object, an unknown architecture, or a field that is
            missing, ill-typed, out of range or at odds with another; the message names
            the field and `source`.
    """
    top = Fields(_load_object(text, source), source)
    family = _family(top)
    fields = _text_fields(top, family)
    raw = {name: value for name, value in fields.raw.items() if name not in QUANTISED}
    said = (each.raw.get(name) for each in (top, fields) for name in QUANTISED)
    given = next((value for value in said if value is not None), None)
    sizes, kept = _Sizes(fields, family), family.flags
    heads = sizes.read("num_attention_heads")
    hidden = sizes.read("hidden_size")
    kv_heads = _kv_heads(fields, family, heads)
    if heads % kv_heads:
        fault = f"of {kv_heads} does not divide {heads} heads"
        raise fields.error("num_key_value_heads", fault)
    return ModelConfig(
        name=name,
        source=source,
        architecture=family.architecture,
        model_type=str(raw["model_type"]) if family.nested else top.raw["model_type"],
        hidden_size=hidden,
        intermediate_size=sizes.read(
            "intermediate_size", family.inner * hidden or None
        ),
        num_hidden_layers=sizes.read("num_hidden_layers", most=MAX_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=_head_dim(fields, family, hidden, heads),
        vocab_size=sizes.read("vocab_size"),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag(
            "attention_bias", default=kept.get("attention_bias", False)
        ),
        mlp_bias=fields.flag("mlp_bias"),
        dtype=fields.dtype(),
        raw=json.dumps(raw, sort_keys=True),
        quantised=_method(given),
        quantization="" if given is None else json.dumps(given, sort_keys=True),
        own=tuple(sorted(family.read(fields).items())),
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Reads the sizes that every family has, by the family's own names."""

    fields: Fields
    family: Family

    def read(self, name: str, default: int | None = None, **limits: int) -> int:
        default = self.family.defaults.get(name, default)
        theirs = self.family.names.get(name, name)
        return self.fields.size(theirs, default=default, **limits)


def _text_fields(top: Fields, family: Family) -> Fields:
    """Return the fields of the text model, which is all of most configs."""
    if not family.nested:
        return top
    text = top.raw.get("text_config")
    if not isinstance(text, dict):
        raise top.error("text_config", "is not an object")
    given = text.get("model_type", family.nested[0])
    if given not in family.nested:
        known = "` or `".join(family.nested)
        raise top.error("text_config", f"is not of model_type `{known}`")
    outer = {name: top.raw[name] for name in _OF_BOTH if name in top.raw}
    return Fields({**outer, **text, "model_type": given}, top.source)


def _kv_heads(fields: Fields, family: Family, heads: int) -> int:
    if callable(family.kv_heads):
        return family.kv_heads(fields)
    # transformers tells an explicit null (as many as heads) from an absent field.
    absent = "num_key_value_heads" not in fields.raw
    default = family.kv_heads if absent and family.kv_heads else heads
    return fields.size("num_key_value_heads", default=default)


def _load_object(text: str, source: str) -> dict[str, Any]:
    if not text.strip():
        raise ConfigError(f"config is empty: `{source}`")
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"config is not JSON, {_one_line(error)}: `{source}`",
            hint="the file may be cut short: fetch it again",
        ) from error
    if not isinstance(raw, dict):
        raise ConfigError(f"config is not a JSON object: `{source}`")
    return raw


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _family(fields: Fields) -> Family:
    names = fields.raw.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise fields.error("architectures", "is not a list of one name")
    family = BY_ARCHITECTURE.get(names[0])
    if family is None:
        raise ConfigError(
            f"unknown architecture in `{fields.source}`: `{names[0]}`",
            hint=f"its config says {_sizes_said(fields.raw)}; {BY_HAND}; known: "
            + ", ".join(sorted(BY_ARCHITECTURE)),
        )
    if fields.raw.get("model_type") not in family.model_types:
        known = "` or `".join(family.model_types)
        expected = f"is not `{known}`, which {family.architecture} needs,"
        raise fields.error("model_type", expected)
    return family


def _sizes_said(raw: dict[str, Any]) -> str:
    """Return the numbers that a config of an unknown family holds, for its hint."""
    text = raw.get("text_config")
    named = {**raw, **text} if isinstance(text, dict) else raw
    said = (
        f"{name} {value}"
        for name, value in sorted(named.items())
        if type(value) is int and not name.endswith("_id")
    )
    return ", ".join(islice(said, 24)) or "no sizes"


def _method(quantization: object) -> str:
    """Return the method that a config says its weights are quantised by."""
    method = quantization
    if isinstance(quantization, dict):
        # Newer modelopt says in config.json what it did, and not that it was it.
        method = quantization.get("quant_method", quantization.get("quant_algo"))
    return "" if quantization is None else str(method)[:60]


def _head_dim(fields: Fields, family: Family, hidden: int, heads: int) -> int:
    even = family.head_dim
    if even is None and not hidden % heads:
        even = hidden // heads
    if even is None and fields.raw.get("head_dim") is None:
        raise fields.error("hidden_size", f"is not a multiple of {heads} heads")
    head_dim = fields.size("head_dim", default=even)
    if not family.free_head_dim and head_dim * heads != hidden:
        raise fields.error("head_dim", f"is not {hidden} / {heads}, as vLLM has it,")
    return head_dim
