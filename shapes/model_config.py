"""A model's config.json, read and checked: the fields that decide its GEMMs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flytune.shapes.errors import FlytuneError
from flytune.shapes.families import BY_ARCHITECTURE, Family

DTYPES = ("bfloat16", "float16", "float32")
DEFAULT_DTYPE = "bfloat16"
"""What both engines run a config without a dtype in."""

QUANT_SIDECAR = "hf_quant_config.json"
"""Where modelopt says that a model is quantised, in place of its config.json."""
MAX_CONFIG_BYTES = 4 * 2**20
MAX_SIZE = 2**31 - 1
"""Largest value of a size field; more is a corrupt file, not a model."""
MAX_LAYERS = 10_000
"""As above, and each layer is built when the model is traced."""


class ConfigError(FlytuneError):
    """A config that cannot be read, or that says something impossible."""


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
    """The whole config as JSON, from which the traced model is built."""

    @property
    def family(self) -> Family:
        return BY_ARCHITECTURE[self.architecture]


def read_config(path: Path, name: str) -> ModelConfig:
    """Read the config.json at `path` as the model `name`.

    Raises:
        ConfigError: the file is missing, unreadable or not JSON, a modelopt
            `hf_quant_config.json` lies beside it, or `parse_config` refuses it.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"not a regular file: `{path}`")
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"too large for a model config: `{path}`")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot read the config, {reason}: `{path}`") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config is not UTF-8 text: `{path}`") from error
    sidecar = path.with_name(QUANT_SIDECAR)
    if sidecar.exists():
        raise ConfigError(f"quantised models are not supported: `{sidecar}`")
    return parse_config(text, name=name, source=str(path))


def parse_config(text: str, *, name: str, source: str) -> ModelConfig:
    """Check the JSON `text` of a config.

    Raises:
        ConfigError: not one JSON object, an unknown or quantised architecture, or a
            field that is missing, ill-typed, out of range or at odds with another;
            the message names the field and `source`.
    """
    raw = _load_object(text, source)
    fields = _Fields(raw, source)
    family = _family(fields)
    _refuse_quantised(fields)
    heads = fields.size("num_attention_heads")
    hidden = fields.size("hidden_size")
    # transformers tells an explicit null (as many as heads) from an absent field.
    absent = "num_key_value_heads" not in raw
    kv_default = family.kv_heads if absent and family.kv_heads else heads
    kv_heads = fields.size("num_key_value_heads", default=kv_default)
    if heads % kv_heads:
        fault = f"of {kv_heads} does not divide {heads} heads"
        raise fields.error("num_key_value_heads", fault)
    return ModelConfig(
        name=name,
        source=source,
        architecture=family.architecture,
        model_type=family.model_type,
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        num_hidden_layers=fields.size("num_hidden_layers", most=MAX_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=_head_dim(fields, family, hidden, heads),
        vocab_size=fields.size("vocab_size"),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        dtype=fields.dtype(),
        raw=json.dumps(raw, sort_keys=True),
    )


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to the JSON object, with errors that name field and file."""

    raw: dict[str, Any]
    source: str

    def error(self, field: str, fault: str) -> ConfigError:
        value = json.dumps(self.raw.get(field))[:60]
        return ConfigError(f"{field} {fault} in `{self.source}`: `{value}`")

    def size(
        self, field: str, *, default: int | None = None, most: int = MAX_SIZE
    ) -> int:
        value = self.raw.get(field)
        if value is None:
            if default is None:
                raise ConfigError(f"config lacks {field}: `{self.source}`")
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(field, "is not a whole number")
        if not 0 < value <= most:
            raise self.error(field, f"is not from 1 to {most}")
        return value

    def flag(self, field: str) -> bool:
        value = self.raw.get(field, False)
        if not isinstance(value, bool):
            raise self.error(field, "is not true or false")
        return value

    def dtype(self) -> str:
        field = "dtype" if self.raw.get("dtype") is not None else "torch_dtype"
        value = self.raw.get(field)
        if value is None:
            return DEFAULT_DTYPE
        if value not in DTYPES:
            raise self.error(field, f"is not one of {', '.join(DTYPES)}")
        return str(value)


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


def _family(fields: _Fields) -> Family:
    names = fields.raw.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise fields.error("architectures", "is not a list of one name")
    family = BY_ARCHITECTURE.get(names[0])
    if family is None:
        raise ConfigError(
            f"unsupported architecture in `{fields.source}`: `{names[0]}`",
            hint="supported: " + ", ".join(sorted(BY_ARCHITECTURE)),
        )
    if fields.raw.get("model_type") != family.model_type:
        expected = f"is not `{family.model_type}`, which {family.architecture} needs,"
        raise fields.error("model_type", expected)
    return family


def _refuse_quantised(fields: _Fields) -> None:
    quantised = fields.raw.get("quantization_config")
    if quantised is None:
        return
    method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
    raise ConfigError(
        f"quantised models are not supported, quantization_config in "
        f"`{fields.source}`: `{str(method)[:60]}`",
        hint="plan the model that it was quantised from",
    )


def _head_dim(fields: _Fields, family: Family, hidden: int, heads: int) -> int:
    even = family.head_dim
    if even is None and not hidden % heads:
        even = hidden // heads
    if even is None and fields.raw.get("head_dim") is None:
        raise fields.error("hidden_size", f"is not a multiple of {heads} heads")
    head_dim = fields.size("head_dim", default=even)
    if not family.free_head_dim and head_dim * heads != hidden:
        raise fields.error("head_dim", f"is not {hidden} / {heads}, as vLLM has it,")
    return head_dim
