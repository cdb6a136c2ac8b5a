"""Whether vLLM would hit a bundle, and each factor of its key by which it would not."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flytune.caches.manifest import Manifest
from flytune.caches.vllm_factors import RAY_PREFIXES, VllmFactors
from flytune.shapes.errors import FlytuneError

_ABSENT = "absent"
_BESIDES = ("location", "source")
# vLLM's modes in which it saves a graph ahead of time that it cannot load.
_UNLOADABLE = ("DYNAMO_TRACE_ONCE",)
# What a person would not expect to be a part of the key, by the start of its name.
_REMARKS = {
    "model_config.model": "the name or path counts as it is written",
    "model_config.generation_config": "--generation-config",
    "model_config.hf_config": "of the model's config.json",
    "environment.VLLM_PLUGINS": "the variable's text counts, not only what it loads",
    "environment.CUDA_HOME": "the path counts as it is written",
    "inductor": "a setting of torch._inductor.config",
    "functorch": "a setting of torch._functorch.config",
    "torch": "another build of torch",
    "system": "another device, CUDA or Triton",
    "vllm": "another vLLM",
    "code": "another vLLM, or a model's class of another plugin",
    "source": "vLLM compares the file when it loads, and compiles again",
    "location": "without a mega-artifact the paths of vLLM's own files count",
    "lora_config": "the graphs hold the adapters' buffers",
    "parallel_config": "ranks and how they talk to each other",
}
# Shorter values, such as true and 1, may be the same in two factors by chance.
_TELLING = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """One factor that differs."""

    name: str
    """As "model_config.max_model_len"; the part is before the first dot."""
    baked: str
    live: str
    also: tuple[str, ...] = ()
    """Other factors that differ by the same values."""

    @property
    def remark(self) -> str:
        """Why it counts, where one would not expect it; empty elsewhere."""
        if _reordered(self.baked, self.live):
            return "the order counts"
        if self.name.removeprefix("environment.").startswith(RAY_PREFIXES):
            return "Ray sets it in its workers: unset it"
        starts = [start for start in _REMARKS if _under(self.name, start)]
        return _REMARKS[max(starts, key=len)] if starts else ""

    @property
    def line(self) -> str:
        """One line for a person."""
        also = f" (and {', '.join(self.also)})" if self.also else ""
        remark = f"; {self.remark}" if self.remark else ""
        return f"{self.name}{also}: baked `{self.baked}`, here `{self.live}`{remark}"

    def to_json(self) -> dict[str, Any]:
        """Return a row."""
        return {
            **{"factor": self.name, "baked": self.baked, "live": self.live},
            **{"also": list(self.also), "remark": self.remark},
        }


@dataclass(frozen=True, slots=True)
class Prediction:
    """What vLLM would find of a bundle."""

    hit: bool
    folders: tuple[str, ...]
    """The names of the folders that the engine would look for."""
    baked: tuple[str, ...]
    """The names of those that the bundle holds."""
    exact: bool
    """Whether the names themselves were compared; else only what they are made of."""
    differences: tuple[Difference, ...]
    reason: str = ""
    """Why it would miss although nothing differs."""


def baked_factors(manifest: Manifest) -> VllmFactors:
    """Return the factors that a bundle was baked under.

    Raises:
        FlytuneError: it was not baked with vLLM, or they are malformed.
    """
    kind = manifest.program.get("kind")
    if kind != "vllm":
        raise FlytuneError(
            f"bundle was not baked with vLLM; its program is of the kind: {kind}",
            hint="build one with `--engine vllm --bake vllm`",
        )
    return VllmFactors.from_json(manifest.program.get("factors"))


def predict(baked: VllmFactors, live: VllmFactors) -> Prediction:
    """Say what an engine with the live factors would find of a bundle."""
    found = tuple(_grouped(_differences(baked, live)))
    # A model's class may name more classes than an engine runs.
    keys = {name: key for name, key in live.keys.items() if name in baked.keys}
    wanted = replace(live, keys=keys or live.keys, code=baked.code).folders
    exact = baked.exact and live.complete
    same = wanted == baked.folders if exact else not found
    # A name holds the first only by way of the source files, which are known after a
    # bake, and the second not at all: vLLM compares it when it loads.
    besides = any(_under(one.name, part) for one in found for part in _BESIDES)
    reason = _unloadable(live)
    return Prediction(
        hit=same and not besides and not reason,
        folders=tuple(sorted(wanted)),
        baked=tuple(sorted(baked.folders)),
        exact=exact,
        differences=found,
        reason=reason,
    )


def _unloadable(live: VllmFactors) -> str:
    mode = live.shapes["mode"]
    if not live.ahead or mode not in _UNLOADABLE:
        return ""
    return (
        f"vLLM {live.version} cannot load what it has compiled ahead of time in its "
        f"mode {mode}, which its CPU platform takes; with VLLM_USE_AOT_COMPILE=0 "
        "torch's own caches hit"
    )


def _differences(baked: VllmFactors, live: VllmFactors) -> Iterator[Difference]:
    for part in dict.fromkeys((*baked.parts, *live.parts)):
        was, now = baked.parts.get(part), live.parts.get(part)
        if was is None or now is None or was["hash"] != now["hash"]:
            yield from _of_part(part, was, now)
    for module in sorted(baked.sources.keys() & live.sources.keys()):
        was_file, now_file = baked.sources[module], live.sources[module]
        if was_file != now_file:
            yield Difference(f"source.{module}", was_file[:16], now_file[:16])


def _of_part(
    part: str, was: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> Iterator[Difference]:
    """Yield what differs in a part; itself, where nothing that has a name does."""
    if was is None or now is None:
        yield Difference(part, _presence(was), _presence(now))
        return
    old, new = was["factors"], now["factors"]
    named = [
        Difference(f"{part}.{name}", old.get(name, _ABSENT), new.get(name, _ABSENT))
        for name in dict.fromkeys((*old, *new))
        if old.get(name, _ABSENT) != new.get(name, _ABSENT)
    ]
    yield from named or [Difference(part, was["hash"][:16], now["hash"][:16])]


def _presence(part: Mapping[str, Any] | None) -> str:
    """Return what a part holds, which the other side has no such part of."""
    if part is None:
        return _ABSENT
    return ", ".join(f"{name}={value}" for name, value in part["factors"].items())


def _grouped(found: Iterator[Difference]) -> Iterator[Difference]:
    """Join factors that differ by the same values, where these or a name say so."""
    groups: dict[tuple[str, str, str], list[Difference]] = {}
    for one in found:
        tells = len(one.baked) >= _TELLING and len(one.live) >= _TELLING
        place = (one.baked, one.live, "" if tells else one.name.rpartition(".")[2])
        groups.setdefault(place, []).append(one)
    for first, *others in groups.values():
        also = tuple(other.name for other in others)
        yield Difference(first.name, first.baked, first.live, also)


def _reordered(baked: str, live: str) -> bool:
    try:
        was, now = json.loads(baked), json.loads(live)
    except ValueError:
        return False
    lists = isinstance(was, list) and isinstance(now, list)
    return lists and was != now and sorted(map(repr, was)) == sorted(map(repr, now))


def _under(name: str, start: str) -> bool:
    return name == start or name.startswith(f"{start}.")
