"""Typed access to a config's JSON object, with errors that name field and file."""

import json
from dataclasses import dataclass
from typing import Any

from flytune.shapes.errors import FlytuneError

DTYPES = ("bfloat16", "float16", "float32")
DEFAULT_DTYPE = "bfloat16"
"""What both engines run a config without a dtype in."""

BY_HAND = "give its GEMMs by hand with --shapes FILE, CSV or JSON lines"
"""The hint for what no row of a table is of."""
MAX_SIZE = 2**31 - 1
"""Largest value of a size field; more is a corrupt file, not a model."""
MAX_LAYERS = 10_000
"""As above, and each layer is built when the model is traced."""


class ConfigError(FlytuneError):
    """A config that cannot be read, or that says something impossible."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one config, or of the text model's within it.

    Every method raises ConfigError for a field that is missing, ill-typed or out of
    range.
    """

    raw: dict[str, Any]
    source: str

    def error(self, field: str, fault: str) -> ConfigError:
        value = json.dumps(self.raw.get(field))[:60]
        return ConfigError(f"{field} {fault} in `{self.source}`: `{value}`")

    def size(
        self,
        field: str,
        *,
        default: int | None = None,
        most: int = MAX_SIZE,
        least: int = 1,
    ) -> int:
        """Return a whole number; `default` where it is absent or null."""
        value = self.raw.get(field)
        if value is None:
            if default is None:
                raise ConfigError(f"config lacks {field}: `{self.source}`")
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(field, "is not a whole number")
        if not least <= value <= most:
            raise self.error(field, f"is not from {least} to {most}")
        return value

    def flag(self, field: str, *, default: bool = False) -> bool:
        value = self.raw.get(field)
        if value is None and field not in self.raw:
            return default
        if not isinstance(value, bool):
            raise self.error(field, "is not true or false")
        return value

    def layers(self, field: str, count: int) -> tuple[int, ...] | None:
        """Return indices of layers, each once and in order; None where absent."""
        value = self.raw.get(field)
        if value is None:
            return None
        if not isinstance(value, list) or any(
            not isinstance(each, int) or isinstance(each, bool) or not 0 <= each < count
            for each in value
        ):
            raise self.error(field, f"is not a list of layers from 0 to {count - 1}")
        return tuple(sorted(set(value)))

    def types(
        self, field: str, count: int, known: tuple[str, ...]
    ) -> tuple[str, ...] | None:
        """Return the type of each of `count` layers; None where absent."""
        value = self.raw.get(field)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count:
            raise self.error(field, f"is not a list of {count} layers")
        for each in value:
            if each not in known:
                raise self.error(field, f"is not of {', '.join(known)}")
        return tuple(value)

    def dtype(self) -> str:
        field = "dtype" if self.raw.get("dtype") is not None else "torch_dtype"
        value = self.raw.get(field)
        if value is None:
            return DEFAULT_DTYPE
        if value not in DTYPES:
            raise self.error(field, f"is not one of {', '.join(DTYPES)}")
        return str(value)

    def word(self, field: str, known: tuple[str, ...], default: str) -> str:
        """Return one of the words that are known; `default` where it is absent."""
        value = self.raw.get(field)
        if value is None:
            return default
        if value not in known:
            raise self.error(field, f"is not {' or '.join(known)}")
        return str(value)

    def strings(self, field: str) -> list[str]:
        """Return a list of strings; an empty one where it is absent or null."""
        value = self.raw.get(field)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.error(field, "is not a list of names")
        return value
