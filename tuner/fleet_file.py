"""The file of a fleet: models to build in one go, each by the options of a build.

TOML: a table `defaults` and a table of the array `models` for each model, with options
of `flytune build` by their names on the command line.
"""

import difflib
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from flytune.shapes.errors import FlytuneError

OF_ONE = ("model", "shapes", "bake-cmd", "exclude", "out", "name", "arguments")
"""Keys of a model's table alone: they are nothing that models have in common."""
OF_ALL = (
    *("ray", "work", "fresh", "key", "no-sign", "trust", "allow-unsigned"),
    *("budget", "gpu-hour-price"),
)
"""Options that are of a whole fleet: `defaults` may have them, and no model."""
# No option of a build, but keys of a model: its name, and what follows `--`.
_OWN = ("name", "arguments")
# Words that are joined by commas; a list says the same.
_JOINED = ("tokens", "batch", "backends", "ops", "phase")
_MOST_BYTES = 2**20

Words = Mapping[str, tuple[str, ...]]
"""By option, what a command line says of it: ("--tp", "2"), or nothing."""


@dataclass(frozen=True, slots=True)
class ModelTable:
    """One model's table, checked as far as the file alone tells."""

    where: str
    """The file and the table, for errors."""
    words: Words
    name: str | None = None
    out: Path | None = None
    arguments: tuple[str, ...] = ()
    """Those of `vllm serve`."""


@dataclass(frozen=True, slots=True)
class FleetFile:
    """What the file of a fleet says."""

    path: Path
    defaults: Words
    models: tuple[ModelTable, ...]


def options_by_name(command: click.Command) -> dict[str, click.Option]:
    """Return a command's options by their long names, without the dashes."""
    return {
        word.removeprefix("--"): param
        for param in command.params
        if isinstance(param, click.Option)
        for word in param.opts
        if word.startswith("--")
    }


def read_fleet(path: Path, command: click.Command) -> FleetFile:
    """Read the file of a fleet.

    Args:
        command: `flytune build`, whose options the keys are.

    Raises:
        FlytuneError: it cannot be read, there is no model, or a key is unknown, of
            another type, or not of its table.
    """
    rows = _rows(path)
    options = options_by_name(command)
    options.pop("models", None)
    for key in rows:
        if key not in ("defaults", "models"):
            hint = "known are [defaults] and [[models]]"
            raise FlytuneError(f"{path}: unknown key: `{key}`", hint=hint)
    tables = rows.get("models")
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        hint = "give each model a table that begins with [[models]]"
        raise FlytuneError(f"{path}: there is no model", hint=hint)
    defaults = rows.get("defaults", {})
    where = f"{path}: [defaults]"
    if not isinstance(defaults, dict):
        raise FlytuneError(f"{where} is no table: `{defaults}`")
    _check_keys(where, defaults, set(options) - set(OF_ONE), OF_ONE, "[[models]]")
    known = {*options, *_OWN} - set(OF_ALL)
    models = []
    for number, table in enumerate(tables, 1):
        said = next((table[k] for k in ("name", "model", "shapes") if k in table), "")
        where = f"{path}: [[models]] {number}" + (f" ({said})" if said else "")
        _check_keys(where, table, known, OF_ALL, "[defaults]")
        models.append(_model(where, table, options))
    if not models:
        raise FlytuneError(f"{path}: there is no model")
    where = f"{path}: [defaults]"
    return FleetFile(path, _words(where, defaults, options), tuple(models))


def _rows(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise FlytuneError(f"cannot read models: {path}: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise FlytuneError(f"file of models is too large: {path}")
    try:
        return tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise FlytuneError(f"models are not TOML: {path}: {error}") from error


def _check_keys(
    where: str,
    table: Mapping[str, Any],
    known: set[str],
    elsewhere: tuple[str, ...],
    there: str,
) -> None:
    """Refuse keys that are unknown, or of the other kind of table."""
    for key in table:
        if key in known:
            continue
        if key in elsewhere:
            raise FlytuneError(f"{where}: key is of {there} alone: `{key}`")
        near = difflib.get_close_matches(key.replace("_", "-"), known, 1, 0.7)
        hint = f"did you mean `{near[0]}`?" if near else "flytune build --help"
        raise FlytuneError(f"{where}: unknown key: `{key}`", hint=hint)


def _model(
    where: str, table: Mapping[str, Any], options: Mapping[str, click.Option]
) -> ModelTable:
    own = {"name": table.get("name", "x"), "out": table.get("out", "x")}
    for key, value in own.items():
        if not isinstance(value, str) or not value:
            raise FlytuneError(f"{where}: `{key}` must be a string: `{value}`")
    name = table.get("name")
    if name is not None and (Path(name).name != name or name.startswith((".", "-"))):
        raise FlytuneError(f"{where}: `name` must be a file's name: `{name}`")
    arguments = table.get("arguments", [])
    if not _are_strings(arguments):
        raise FlytuneError(f"{where}: `arguments` must be strings: `{arguments}`")
    rest = {k: v for k, v in table.items() if k not in (*_OWN, "out")}
    return ModelTable(
        where,
        _words(where, rest, options),
        name,
        Path(own["out"]) if "out" in table else None,
        tuple(arguments),
    )


def _words(
    where: str, table: Mapping[str, Any], options: Mapping[str, click.Option]
) -> Words:
    return {
        key: tuple(_option_words(where, key, value, options[key]))
        for key, value in table.items()
    }


def _option_words(
    where: str, key: str, value: Any, option: click.Option
) -> Iterator[str]:
    """Yield the words that say on a command line what a key says."""

    def refused(what: str) -> FlytuneError:
        return FlytuneError(f"{where}: `{key}` must be {what}: `{value}`")

    word = f"--{key}"
    if option.is_flag:
        if not isinstance(value, bool):
            raise refused("true or false")
        if value:
            yield word
    elif option.multiple:
        some = [value] if isinstance(value, str) else value
        if not _are_strings(some):
            raise refused("a string, or strings in a list")
        for one in some:
            yield from (word, one)
    elif isinstance(option.type, click.types.IntParamType):
        if not isinstance(value, int) or isinstance(value, bool):
            raise refused("a number")
        yield from (word, str(value))
    elif isinstance(option.type, click.types.FloatParamType):
        if type(value) not in (int, float, str):
            raise refused("a number")
        yield from (word, str(value))
    else:
        yield from (word, _text(key, value, refused))


def _text(key: str, value: Any, refused: Any) -> str:
    some = value if isinstance(value, list) else [value]
    if key in _JOINED:
        if not some or any(type(one) not in (str, int) for one in some):
            raise refused("a string, a number, or some in a list")
        return ",".join(map(str, some))
    if key == "bake-cmd" and _are_strings(some) and isinstance(value, list):
        return shlex.join(value)
    if not isinstance(value, str):
        raise refused("a string")
    return value


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
