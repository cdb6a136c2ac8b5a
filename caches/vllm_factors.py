"""What vLLM's compile-cache key is made of: asked for, stored, and read again.

vLLM looks for what it compiled ahead of time in a directory that is named by a key. A
bundle's manifest holds every factor of that key, as `program.factors`.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from flytune.caches.child import run_module
from flytune.caches.codes import Code
from flytune.caches.compat import vllm_version
from flytune.caches.home import flytune_home
from flytune.shapes.errors import FlytuneError

AHEAD_DIR = "torch_compile_cache/torch_aot_compile"
"""Below VLLM_CACHE_ROOT: a folder a key."""
BESIDE_DIR = "torch_compile_cache"
"""The same, of what vLLM keeps by a shorter key where it makes no mega-artifact."""
RAY_PREFIXES = ("RAY_EXPERIMENTAL_NOSET_", "VLLM_RAY_BUNDLE_INDICES")
"""Variables that Ray sets in its workers, and vLLM hashes."""

PIECEWISE = "VLLM_COMPILE"
"""vLLM's own compile backend, by its name of the mode."""

_MEGA = "environment.VLLM_USE_MEGA_AOT_ARTIFACT"
_MODULE = "flytune.caches.vllm_key"
# The serving plugin would place a bundle in the process that only asks.
_PLUGIN = "FLYTUNE_"
_UNSET = ("null", "", "false")


class Place(NamedTuple):
    """A path in the key, which serving must have as it is written."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class VllmFactors:
    """The key of an engine that was not started, and what it is made of."""

    version: str
    """vLLM's."""
    complete: bool
    """Whether the engine completes nothing more of what is hashed."""
    keys: Mapping[str, str]
    """Each class that is compiled apart, as "LlamaModel.forward", to its key."""
    parts: Mapping[str, Mapping[str, Any]]
    """In vLLM's order, each part to its `hash` and its `factors`, name to value."""
    sources: Mapping[str, str]
    """A compiled class's module to its SHA-256, which vLLM compares when it loads."""
    directory: tuple[str, ...]
    """The hashes of environment, configs and compiler that name the directory beside,
    which holds what is compiled where there is no mega-artifact."""
    shapes: Mapping[str, Any]
    """What decides how many graphs there are."""
    exact: bool = False
    """Whether an engine has used the very folders that are computed."""
    code: str = ""
    """The hash of the source files that were traced, which is known after a bake."""

    @property
    def ahead(self) -> bool:
        """Whether vLLM compiles ahead of time, into a folder that is named by a key."""
        return bool(self.shapes["ahead"])

    @property
    def beside(self) -> bool:
        """Whether vLLM keeps what it compiles, or a part of it, in a directory beside.

        Its own compile backend does where it makes no mega-artifact, which is one file
        that holds all.
        """
        mega = self.ahead and dict(self.named()).get(_MEGA) == "true"
        return self.shapes["mode"] == PIECEWISE and not mega

    @property
    def directory_key(self) -> str:
        """The name of the directory beside; empty before a bake, which finds `code`."""
        if not self.code:
            return ""
        environment, configs, compiler = self.directory
        hashed = str([environment, configs, self.code, compiler])
        return hashlib.sha256(hashed.encode()).hexdigest()[:10]

    @property
    def folders(self) -> frozenset[str]:
        """The names of the folders in which vLLM looks; torch's own where empty."""
        ahead = self.keys.values() if self.ahead else ()
        return frozenset({*ahead, *([self.directory_key] if self.beside else [])})

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's form."""
        return {**asdict(self), "directory": list(self.directory)}

    @classmethod
    def from_json(cls, row: Any) -> Self:
        """Read the manifest's form.

        Raises:
            FlytuneError: it is not of that form.
        """
        try:
            factors = cls(**{**row, "directory": tuple(row["directory"])})
            for part in factors.parts.values():
                dict(part["factors"]), str(part["hash"])
            dict(factors.keys), dict(factors.sources), dict(factors.shapes)
        except (KeyError, TypeError, ValueError) as error:
            raise FlytuneError(
                f"bundle's factors of vLLM's key are malformed: {error}",
                code=Code.MANIFEST,
            ) from error
        return factors

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield every factor, as ("part.name", value)."""
        for part, row in self.parts.items():
            for name, value in row["factors"].items():
                yield f"{part}.{name}", str(value)

    def after_bake(self, root: Path) -> Self:
        """Return these factors with what an engine has made of them.

        Args:
            root: The VLLM_CACHE_ROOT that it baked in.

        Raises:
            FlytuneError: vLLM was to keep what it compiled there, and kept nothing.
        """
        made = baked_folders(root)
        if not made and (self.ahead or self.beside):
            raise FlytuneError(
                f"vLLM kept nothing that it compiled; its mode: {self.shapes['mode']}",
                hint="leave out --enforce-eager and VLLM_DISABLE_COMPILE_CACHE",
            )
        # Of the classes that may be compiled an engine has compiled those it runs.
        keys = {name: key for name, key in self.keys.items() if key in made}
        found = replace(self, keys=keys, code=_code_hash(root))
        exact = bool(found.folders) and found.folders <= made
        exact = exact and (bool(keys) or not self.ahead)
        return replace(found, exact=exact)


def ask(
    arguments: Sequence[str],
    env: Mapping[str, str] | None = None,
    inductor: Mapping[str, Any] = MappingProxyType({}),
) -> VllmFactors:
    """Return the factors of the key of `vllm serve ARGUMENTS`, starting no engine.

    They are asked for in a fresh process of this interpreter, which must be vLLM's.

    Args:
        env: The environment that serving has; None for this process's.
        inductor: The policy's settings of Inductor, which serving from a bundle has.

    Raises:
        FlytuneError: vLLM is absent, refuses the arguments, or has changed a private
            interface.
    """
    vllm_version()
    whole = os.environ if env is None else env
    clean = {k: v for k, v in whole.items() if not k.startswith(_PLUGIN)}
    with tempfile.TemporaryDirectory(prefix="flytune-") as directory:
        result = Path(directory) / "factors.json"
        request = {"arguments": list(arguments), "inductor": dict(inductor)}
        run_module(_MODULE, request, result, clean, what="computing vLLM's key")
        return VllmFactors.from_json(json.loads(result.read_bytes()))


def program_row(arguments: Sequence[str], factors: VllmFactors) -> dict[str, Any]:
    """Return the manifest's `program` of a bundle that was baked with vLLM.

    Args:
        factors: Of the environment that it was baked in, after the bake.

    Raises:
        FlytuneError: a factor is the bake's own and not what was asked for.
    """
    check_portable(factors, arguments)
    return {
        "kind": "vllm",
        "arguments": list(arguments),
        "version": factors.version,
        "key": next(iter(sorted(factors.folders)), ""),
        "factors": factors.to_json(),
    }


def baked_folders(root: Path) -> frozenset[str]:
    """Return the names of the folders that an engine has filled, below its root."""
    ahead = (root / AHEAD_DIR).glob("*/rank_*/model")
    beside = (root / BESIDE_DIR).glob("*/rank_*/*/vllm_compile_cache.py")
    return frozenset(
        (
            *(path.parents[1].name for path in ahead),
            *(p.parents[2].name for p in beside),
        )
    )


def _code_hash(root: Path) -> str:
    for path in sorted((root / BESIDE_DIR).glob("*/rank_*/*/cache_key_factors.json")):
        return str(json.loads(path.read_bytes()).get("code_hash", ""))
    return ""


def portable_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment to bake in: without what Ray sets in its workers."""
    return {k: v for k, v in env.items() if not k.startswith(RAY_PREFIXES)}


def check_portable(factors: VllmFactors, arguments: Sequence[str]) -> None:
    """Check that a key holds nothing of the machine that it was computed on.

    What an argument says is what serving has too, and is never refused.

    Raises:
        FlytuneError: a factor holds a private path of this machine, or is a variable
            that Ray has set in its workers.
    """
    private_places = _private_places()
    for name, value in factors.named():
        variable = name.removeprefix("environment.")
        if variable.startswith(RAY_PREFIXES) and value not in _UNSET:
            raise FlytuneError(
                f"vLLM's key would hold a variable of Ray's: {variable}={value}",
                hint="unset it for the build: serving does not have it",
            )
        given = any(value and value in argument for argument in arguments)
        for place in () if given else private_places:
            if _holds_path(value, place):
                raise FlytuneError(
                    f"vLLM's key would hold a path of this machine: {name}: {value}",
                    hint="unset it for the build, or give a path that serving has too",
                )


def places(factors: VllmFactors) -> tuple[Place, ...]:
    """Return the absolute paths in a key: serving must have each as it is written."""
    return tuple(
        Place(name, value) for name, value in factors.named() if value.startswith("/")
    )


def _private_places() -> tuple[str, ...]:
    """Return folders of this machine that no other one need have."""
    found = [Path.home(), Path(tempfile.gettempdir()), Path.cwd(), flytune_home()]
    return tuple(str(place) for place in found if len(place.parts) > 1)


def _holds_path(text: str, place: str) -> bool:
    """Whether a text names a folder or something in it, and not a longer name."""
    return any(not rest or rest[0] in "/:\"', ]" for rest in text.split(place)[1:])
