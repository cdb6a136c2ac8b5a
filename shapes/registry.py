"""Finds a model's config: shipped by name, at a path, or on the Hugging Face hub."""

import difflib
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from flytune.shapes.errors import FlytuneError
from flytune.shapes.model_config import (
    QUANT_SIDECAR,
    ModelConfig,
    parse_config,
    read_config,
)

HUB_TIMEOUT_S = 5.0


class UnknownModelError(FlytuneError):
    """No config goes by the name."""


@dataclass(frozen=True, slots=True)
class ShippedModel:
    """A model whose config is in `models/`."""

    name: str
    """The full name, which is the file's."""
    organisation: str
    """Its owner on the Hugging Face hub."""
    short: str
    """The one other name that it goes by."""

    @property
    def hub_id(self) -> str:
        return f"{self.organisation}/{self.name}"


SHIPPED = (
    ShippedModel("Llama-3.1-8B-Instruct", "meta-llama", "Llama-3.1-8B"),
    ShippedModel("Llama-3.3-70B-Instruct", "meta-llama", "Llama-3.3-70B"),
    ShippedModel("Qwen3-32B", "Qwen", "Qwen3-32B"),
    ShippedModel("Qwen3-4B", "Qwen", "Qwen3-4B"),
)


def find_model(name: str) -> ModelConfig:
    """Return the config of `name`, which is never guessed.

    In this order: a shipped model by its short or full name, any case; an existing
    `config.json` or a folder that holds one; a shipped model by its hub id; a hub id
    `org/name`, from the hub's local cache where the hub is out of reach. A folder
    that is called as a shipped model is reached as `./name`.

    Raises:
        UnknownModelError: nothing goes by the name; the hint lists near ones.
        ConfigError: the config is corrupt or its model unsupported.
        FlytuneError: the hub is out of reach, or keeps the model gated.
    """
    if not name.strip() or "\0" in name:
        raise _unknown(name)
    shipped = _shipped(name)
    if shipped is not None and "/" not in name:
        return _read_shipped(shipped)
    path = config_path(name)
    if path is not None:
        return _read_path(path)
    if shipped is not None:
        return _read_shipped(shipped)
    if re.match(r"[./~]", name) or name.count("/") > 1 or name.endswith(".json"):
        raise UnknownModelError(f"no such config file or folder: `{name}`")
    if "/" in name:
        return _read_hub(name)
    raise _unknown(name)


def _shipped(name: str) -> ShippedModel | None:
    folded = name.casefold()
    for model in SHIPPED:
        if folded in (alias.casefold() for alias in _aliases(model)):
            return model
    return None


def _aliases(model: ShippedModel) -> tuple[str, ...]:
    return (model.short, model.name, model.hub_id)


def _read_shipped(model: ShippedModel) -> ModelConfig:
    file = files("flytune.shapes") / "models" / f"{model.name}.json"
    text = file.read_text(encoding="utf-8")
    return parse_config(text, name=model.name, source=f"shipped {model.name}")


def config_path(name: str) -> Path | None:
    """Return the file or folder that `find_model` reads; None where it reads none."""
    if "/" not in name and _shipped(name) is not None:
        return None
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):
        # Too long for a file name, in a closed folder, or an unknown `~user`.
        return None


def _read_path(path: Path) -> ModelConfig:
    if not path.is_dir():
        stem = path.parent.resolve().name if path.name == "config.json" else path.stem
        return read_config(path, stem)
    config = path / "config.json"
    if not config.exists():
        raise UnknownModelError(f"no config.json in folder: `{path}`")
    return read_config(config, path.resolve().name)


def _read_hub(name: str) -> ModelConfig:
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError as error:
        raise FlytuneError(
            f"fetching a config needs the build extra: `{name}`",
            hint="pip install 'flytune[build]'",
        ) from error
    offline = _out_of_reach(name)
    try:
        path = hf_hub_download(name, "config.json", local_files_only=offline)
        with suppress(errors.EntryNotFoundError):
            hf_hub_download(name, QUANT_SIDECAR, local_files_only=offline)
    except errors.GatedRepoError as error:
        raise FlytuneError(
            f"the hub keeps this model gated: `{name}`",
            hint="accept its licence on the hub, then run `hf auth login`",
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise _unknown(name) from error
    except errors.RemoteEntryNotFoundError as error:
        raise UnknownModelError(f"no config.json on the hub for: `{name}`") from error
    except (OSError, errors.HfHubHTTPError) as error:
        near = _near(name)
        raise FlytuneError(
            f"cannot reach the Hugging Face hub for model: `{name}`",
            hint="give the path of its config.json" + (f"; {near}" if near else ""),
        ) from error
    return read_config(Path(path), name.rpartition("/")[2])


def _out_of_reach(name: str) -> bool:
    """Ask the hub once: its download would log and retry for half a minute."""
    from huggingface_hub import HfApi, errors

    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except errors.HfHubHTTPError as error:
        # Below 500 the hub has answered, and the download says what is wrong.
        return error.response.status_code >= 500
    except errors.HFValidationError:
        return False
    except Exception:
        # Any type: the HTTP library under the hub's differs between its releases.
        return True
    return False


def _unknown(name: str) -> UnknownModelError:
    shipped = ", ".join(model.short for model in SHIPPED)
    hint = _near(name) or f"shipped: {shipped}; or a path, or a hub id `org/name`"
    return UnknownModelError(f"no config for model: `{name}`", hint=hint)


def _near(name: str) -> str | None:
    """Return "did you mean `X`, `Y`?" of the shipped models near to `name`."""
    owner = {alias.casefold(): model for model in SHIPPED for alias in _aliases(model)}
    close = difflib.get_close_matches(name.casefold(), owner, n=6, cutoff=0.6)
    names = dict.fromkeys(f"`{owner[alias].short}`" for alias in close)
    return f"did you mean {', '.join(tuple(names)[:3])}?" if names else None
