"""The target: the hardware and software that decide whether a cache entry hits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

from flytune.caches.device_profile import live_profile
from flytune.caches.host import Part, cpu_hardware, software


class PartStatus(StrEnum):
    """How one part of a live target stands to the one that a bundle was built for."""

    HIT = "hit"
    MISS = "miss"
    WARNING = "warning"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PartResult:
    """One part compared."""

    part: str
    """Such as "hardware.isa"."""
    status: PartStatus
    built: Part
    live: Part
    reason: str
    """Why the part matters."""

    def __str__(self) -> str:
        return f"{self.part}: built for {_text(self.built)}, here {_text(self.live)}"


class _Rule(NamedTuple):
    differs: PartStatus
    reason: str


_MISS = PartStatus.MISS
_WARNING = PartStatus.WARNING
_RULES: Mapping[str, _Rule] = {
    "hardware.kind": _Rule(_MISS, "kernels are for one kind of device"),
    "hardware.arch": _Rule(_MISS, "machine code is for one architecture"),
    "hardware.isa": _Rule(_MISS, "C++ kernels are compiled for the instruction set"),
    "hardware.l1d_bytes": _Rule(_MISS, "C++ templates block for this cache"),
    "hardware.l2_bytes": _Rule(_MISS, "C++ templates block for this cache"),
    "hardware.threads": _Rule(_MISS, "the thread count is in C++ source and in keys"),
    "hardware.vendor": _Rule(_WARNING, "code is the same, the fastest may not be"),
    "hardware.product": _Rule(_WARNING, "code is the same, the fastest may not be"),
    "hardware.l3_bytes": _Rule(_WARNING, "no key holds it, times depend on it"),
    "hardware.cores": _Rule(_WARNING, "threads decide, cores share them"),
    "hardware.memory_bytes": _Rule(_WARNING, "only whether the model fits"),
    "hardware.compute_units": _Rule(_MISS, "the source of Triton's kernels holds it"),
    "hardware.smi_product": _Rule(_WARNING, "code is the same, the fastest may not be"),
    "hardware.smi_compute_units": _Rule(_WARNING, "of all partitions, or of one"),
    "hardware.compute_partition": _Rule(
        _WARNING, "no key holds it, times depend on it"
    ),
    "hardware.memory_partition": _Rule(_WARNING, "no key holds it, times depend on it"),
    "software.torch": _Rule(_MISS, "every graph key holds torch's version"),
    "software.torch_git": _Rule(_MISS, "the build, where versions are the same"),
    "software.torch_key": _Rule(_MISS, "every graph key holds torch's source"),
    "software.cuda": _Rule(_MISS, "the name of the timings file holds it"),
    "software.hip": _Rule(_MISS, "the name of the timings file holds it"),
    "software.triton": _Rule(_MISS, "kernel and timing keys hold Triton's build"),
    "software.triton_key": _Rule(_MISS, "the build, where versions are the same"),
    "software.driver": _Rule(_WARNING, "no key holds it, a kernel may need it newer"),
    "software.flydsl": _Rule(_MISS, "a graph that imports it needs it"),
    "software.python_abi": _Rule(_MISS, "launchers are Python extensions"),
    "software.glibc": _Rule(_WARNING, "older than the builder's may not load kernels"),
    "software.compiler": _Rule(_MISS, "C++ keys hold the compiler and its version"),
}
_OTHER_RULE = _Rule(_MISS, "a part that this flytune has no rule for")
_NOT_ON_CPU = _Rule(_WARNING, "no CPU kernel is made by it")
_CPU_RULES: Mapping[str, _Rule] = {
    "software.cuda": _NOT_ON_CPU,
    "software.hip": _NOT_ON_CPU,
    "software.triton": _NOT_ON_CPU,
    "software.triton_key": _NOT_ON_CPU,
    "software.driver": _NOT_ON_CPU,
    "software.flydsl": _NOT_ON_CPU,
}
_CUDA_RULES: Mapping[str, _Rule] = {
    "hardware.l2_bytes": _Rule(_WARNING, "no key holds it, times depend on it"),
    "software.compiler": _Rule(_WARNING, "no kernel for this device is made by it"),
}
# torch calls AMD's devices "cuda" too, and FlyDSL's kernels are for those alone.
_NVIDIA_RULES: Mapping[str, _Rule] = {
    **_CUDA_RULES,
    "software.flydsl": _Rule(_WARNING, "no graph for this device imports it"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """Flat, ordered, JSON-able parts; None is a part that is not known here."""

    hardware: Mapping[str, Part]
    software: Mapping[str, Part]

    @classmethod
    def here(
        cls,
        *,
        threads: int | None,
        torch_key: str | None = None,
        triton_key: str | None = None,
        hardware: Mapping[str, Part] | None = None,
    ) -> Self:
        """Collect the target of this machine and this Python environment.

        Args:
            threads: the OpenMP threads that serving has, as its policy sets them.
            torch_key: hex; known only once torch is imported.
            triton_key: as Inductor names its timings after; known only so too.
            hardware: an accelerator's parts; this machine's CPU where None.
        """
        parts = cpu_hardware(threads) if hardware is None else hardware
        return cls(parts, {**software(torch_key), "triton_key": triton_key})

    @classmethod
    def live(cls, kind: str, *, threads: int | None) -> Self:
        """Collect the target of this machine's CPU or of its first accelerator.

        Args:
            kind: "cpu" or "cuda".
            threads: as for `here`.

        Raises:
            FlytuneError: torch cannot be asked for the accelerator.
        """
        if kind == "cpu":
            return cls.here(threads=threads)
        profile = live_profile()
        absent: dict[str, Part] = {"kind": "absent"}
        found = absent if profile is None else profile.hardware()
        return cls.here(threads=threads, hardware=found)

    @classmethod
    def from_json(cls, row: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return the target of a manifest's `target`."""
        return cls(_parts(row["hardware"]), _parts(row["software"]))

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return the manifest's `target`."""
        return {"hardware": _row(self.hardware), "software": _row(self.software)}

    @property
    def slug(self) -> str:
        """A short name for files, such as "cpu-amd-epyc-avx512"."""
        hardware = self.hardware
        isa = hardware.get("isa")
        arch = _isa_name(isa) if isinstance(isa, tuple) else hardware.get("arch")
        vendor = str(hardware.get("vendor") or "")
        words = re.sub(
            r"\(\w+\)|@.*|\d+-core", " ", str(hardware.get("product") or "").lower()
        )
        product = [
            word
            for word in re.findall(r"[a-z0-9]+", words.lower())
            if word not in (vendor, "cpu", "processor")
        ]
        parts = (str(hardware.get("kind") or ""), vendor, *product, str(arch or ""))
        return "-".join(part for part in parts if part)


def compare(built: Target, live: Target) -> tuple[PartResult, ...]:
    """Compare each part that either target has, in the order of the rules.

    A part that one side does not know is unknown: it is checked later, where it can
    be known, or not at all.
    """
    rules = {**_RULES, **_rules_of(built.hardware)}
    old, new = _flat(built), _flat(live)
    order = [*rules, *sorted((old.keys() | new.keys()) - rules.keys())]
    return tuple(
        _compare(name, old.get(name), new.get(name), rules.get(name, _OTHER_RULE))
        for name in order
        if name in old or name in new
    )


def deciding_parts(target: Target) -> dict[str, Any]:
    """Return the parts that a bundle's target must have in common with a host."""
    rules = {**_RULES, **_rules_of(target.hardware)}
    return {
        name: list(part) if isinstance(part, tuple) else part
        for name, part in _flat(target).items()
        if rules.get(name, _OTHER_RULE).differs is _MISS
    }


def _rules_of(hardware: Mapping[str, Part]) -> Mapping[str, _Rule]:
    """Return the rules that a kind of device has of its own."""
    match hardware.get("kind"), hardware.get("vendor"):
        case "cpu", _:
            return _CPU_RULES
        case "cuda", "nvidia":
            return _NVIDIA_RULES
        case "cuda", _:
            return _CUDA_RULES
    return {}


def _compare(name: str, built: Part, live: Part, rule: _Rule) -> PartResult:
    if built is None or live is None:
        status = PartStatus.UNKNOWN
    else:
        status = PartStatus.HIT if built == live else rule.differs
    return PartResult(name, status, built, live, rule.reason)


def _flat(target: Target) -> dict[str, Part]:
    return {
        **{f"hardware.{name}": part for name, part in target.hardware.items()},
        **{f"software.{name}": part for name, part in target.software.items()},
    }


def _parts(row: Mapping[str, Any]) -> dict[str, Part]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}


def _row(parts: Mapping[str, Part]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in parts.items()}


def _text(part: Part) -> str:
    text = " ".join(part) if isinstance(part, tuple) else str(part)
    return f"`{text}`"


def _isa_name(isa: tuple[str, ...]) -> str:
    names = {"amx_tile": "amx", "avx512f": "avx512", "avx2": "avx2", "sve": "sve"}
    return next((name for flag, name in names.items() if flag in isa), "")
