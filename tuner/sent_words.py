"""What of a command line, and which of its files, go to a cluster.

Private keys never do: what is built there is signed at home.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from flytune.caches.bundle import Bundle
from flytune.caches.device_profile import shipped_profiles
from flytune.caches.trust import Trust, admit
from flytune.shapes.errors import FlytuneError
from flytune.shapes.model_config import QUANT_SIDECAR
from flytune.shapes.registry import UnknownModelError, config_path
from flytune.tuner.cluster_build import FILES
from flytune.tuner.fleet_file import FleetFile, Words, options_by_name

# They say where the bundle goes, and who vouches for it: that is done at home.
AT_HOME = ("ray", "out", "key", "no-sign", "trust", "allow-unsigned", "models")
# Beside the working directory of the build there.
_THERE = f"../{FILES}"
_RECORDED = "recorded:"


@dataclass(slots=True)
class Luggage:
    """The files that go to a cluster, and what they are called there."""

    trust: Trust
    """Whose older bundle may go."""
    files: dict[Path, str] = field(default_factory=dict)
    """Their names below `FILES`."""
    texts: dict[str, str] = field(default_factory=dict)
    """Files that are written for the journey, by name below `FILES`."""

    def words(self, given: Words) -> dict[str, tuple[str, ...]]:
        """Return options as the cluster is to have them; their files are noted.

        Raises:
            FlytuneError: an option names what cannot go there.
        """
        if "work" in given and not Path(given["work"][1]).is_absolute():
            raise FlytuneError(
                f"--work is a folder of the cluster's: {given['work'][1]}",
                hint="give its whole path there, or leave it out",
            )
        return {
            name: (words[0], self._there(name, words[1]))
            if len(words) == 2 and name in _NAMES_FILE
            else tuple(words)
            for name, words in given.items()
            if name not in AT_HOME
        }

    def _there(self, name: str, value: str) -> str:
        path = Path(value.removeprefix(_RECORDED))
        if name == "model":
            return self._model(value)
        if name == "target" and (value.lower() in shipped_profiles()):
            return value
        if name == "target-env" and path.is_dir():
            raise FlytuneError(
                f"an environment of this host is not on the cluster: {path}",
                hint="give the file that `flytune doctor --profile` writes in it",
            )
        if name == "from":
            bundle = Bundle.open(path)
            bundle.check()
            admit(bundle, self.trust)
            # Admitted here, and what arrives there is the very same.
            return f"{self.add(bundle.path)}@sha256:{bundle.digest}"
        if not path.exists():
            raise FlytuneError(f"no such file: {path}")
        there = self.add(path)
        return f"{_RECORDED}{there}" if value.startswith(_RECORDED) else there

    def _model(self, value: str) -> str:
        """Note a model's configuration, if it is a file's, and none of its weights."""
        path = config_path(value)
        if path is None:
            return value
        folder = path if path.is_dir() else path.parent
        if path.is_dir() or path.name == "config.json":
            # It is called as its folder is.
            first = folder / "config.json"
            if not first.is_file():
                raise UnknownModelError(f"no config.json in folder: `{folder}`")
            self.add(first, f"{folder.resolve().name}/config.json")
        else:
            first = path
            self.add(first)
        there = Path(self.files[first]).parent
        for name in (f"{first.stem}.{QUANT_SIDECAR}", QUANT_SIDECAR):
            if (beside := folder / name).exists():
                self.files.setdefault(beside, f"{there}/{name}")
        return f"{_THERE}/{there if path.is_dir() else self.files[first]}"

    def add(self, path: Path, name: str = "") -> str:
        """Note a file or a folder, and return how the build there names it.

        Args:
            name: What it is called there, where that is not its own name.
        """
        number = len(self.files)
        self.files.setdefault(path, f"{number}/{name or path.resolve().name}")
        return f"{_THERE}/{self.files[path]}"

    def fleet(self, file: FleetFile, command: click.Command, number: int) -> str:
        """Note a file of models, with the names that its files have there.

        Args:
            number: Tells it from other files of models that go there.

        Raises:
            FlytuneError: a table says where at home its bundle is to be.
        """
        tables = [_table("defaults", self.words(file.defaults), command)]
        for model in file.models:
            if model.out is not None:
                raise FlytuneError(
                    f"{model.where}: `out` is of a build at home",
                    hint="give `name`: bundles come into the folder --out",
                )
            own = {"name": json.dumps(model.name)} if model.name is not None else {}
            if model.arguments:
                own["arguments"] = json.dumps(list(model.arguments))
            words = self.words(model.words)
            tables.append(_table("[models]", words, command, own))
        name = f"fleet-{number}/{file.path.name}"
        self.texts[name] = "\n".join(tables)
        return f"{_THERE}/{name}"

    def pack(self, directory: Path) -> None:
        """Copy all of it into the folder that is sent."""
        for path, name in self.files.items():
            there = directory / FILES / name
            there.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, there)
            else:
                shutil.copyfile(path, there)
        for name, text in self.texts.items():
            there = directory / FILES / name
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_text(text)


_NAMES_FILE = ("model", "shapes", "target", "target-env", "from", "runner")


def build_digest(words: Sequence[str], directory: Path) -> str:
    """Return the name of a build: of its words, and of the files that are sent."""
    whole = hashlib.sha256(json.dumps(list(words)).encode())
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(f"{path.relative_to(directory)} {content}\n".encode())
    return whole.hexdigest()[:16]


def _table(
    title: str,
    words: Words,
    command: click.Command,
    own: Mapping[str, str] | None = None,
) -> str:
    """Return options as a table of TOML, whose strings are those of JSON."""
    options = options_by_name(command)
    lines = [f"[{title}]"]
    lines += [f"{key} = {value}" for key, value in (own or {}).items()]
    for key, some in words.items():
        if options[key].is_flag:
            value = json.dumps(bool(some))
        elif options[key].multiple:
            value = json.dumps(list(some[1::2]))
        elif isinstance(options[key].type, click.types.IntParamType):
            value = some[1]
        else:
            value = json.dumps(some[1])
        lines.append(f"{key} = {value}")
    return "\n".join(lines) + "\n"
