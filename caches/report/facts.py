"""What a bundle is, whether it was verified, and what it leaves out."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flytune.caches.host import ABSENT
from flytune.caches.inspect import size_text, words
from flytune.caches.manifest import Manifest
from flytune.caches.parts import sizes
from flytune.caches.report.bundles import ReportedBundle, stated
from flytune.caches.several import part_name, parts_of
from flytune.caches.trust import Signer
from flytune.caches.words import counted

Level = Literal["good", "warn", "bad"]
_SHOWN = 12
"""GEMMs that one reason names."""
_MODEL = ("name", "architecture", "engine", "tp", "ep", "models")
_DEVICE = ("product", "arch", "compute_units", "memory", "isa", "cores", "threads")
_POLICY = ("name", "tokens", "threads", "attention", "dynamic")


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a bundle may be served from, as far as it says itself."""

    level: Level
    word: str
    text: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """GEMMs that the bundle cannot help, or not in full, for one reason."""

    what: str
    why: str
    gemms: int
    named: tuple[str, ...]
    """Some of them."""


def judgement(manifest: Manifest) -> Judgement:
    """Say whether a bundle was verified, in the words of its manifest."""
    verify = manifest.verify
    if manifest.compiled_only:
        looked = (
            ""
            if verify is None
            else f" {_found(verify)}."
            if verify.get("ok")
            else " Its kernels were not all found."
        )
        return Judgement(
            "warn",
            "Kernels only",
            f"It holds kernels for a build where the device is, and nothing to serve "
            f"from.{looked}",
            _failures(verify),
        )
    if verify is None:
        return Judgement("warn", "Not verified", "Nobody has shown that it hits.")
    if not verify.get("ok"):
        text = "A fresh process did not hit. Serving from it compiles, or tunes."
        return Judgement("bad", "Missed", text, _failures(verify))
    return Judgement("good", "Verified", f"{_hit(verify)}.", _failures(verify))


def _hit(verify: Mapping[str, Any]) -> str:
    work = stated(verify.get("work"), dict)
    seconds = verify.get("first_call_s")
    done = words(work) if work else "lowered, tuned and compiled nothing"
    said = f"A fresh process {done}" if not work else f"A fresh process: {done}"
    if isinstance(seconds, int | float) and seconds > 0:
        said += f"; its first calls took {seconds:.2f} s"
    error = verify.get("worst_error")
    if isinstance(error, int | float):
        said += f"; the largest difference from eager was {error:.4f}"
    return said


def _found(verify: Mapping[str, Any]) -> str:
    hits = stated(verify.get("lookups"), dict).get("flydsl hit", 0)
    return f"A fresh process found {words(hits)} kernels of FlyDSL's"


def _failures(verify: Mapping[str, Any] | None) -> tuple[str, ...]:
    return tuple(map(words, stated((verify or {}).get("failures"), list)))


def facts(
    bundle: ReportedBundle, signed_by: tuple[Signer, ...]
) -> tuple[tuple[str, str], ...]:
    """Return what a bundle is, a name and a text each."""
    manifest = bundle.manifest
    return (
        ("model", _known(manifest.model, *_MODEL)),
        ("programs", "; ".join(_programs(manifest))),
        ("device", _known(manifest.target["hardware"], *_DEVICE)),
        ("timed on", manifest.timed_on or _untimed(bundle)),
        ("software", _software(manifest)),
        ("policy", _known(manifest.policy, *_POLICY)),
        ("packed", f"{manifest.created} by flytune {manifest.flytune}"),
        ("signed by", _signed(signed_by)),
        ("size", _size(manifest)),
        ("built by", _command(manifest)),
        ("digest", f"sha256:{bundle.bundle.digest}"),
    )


def _programs(manifest: Manifest) -> Iterator[str]:
    parts = parts_of(manifest)
    for part in parts:
        kind = part["program"].get("kind", "none")
        if kind == "none":
            yield "none: shapes were lowered one by one"
        else:
            yield f"{part_name(part)}, {words(kind)}"


def _known(mapping: Mapping[str, Any], *names: str) -> str:
    """Return those of a mapping's values that a reader asks for first, in words."""
    known = {n: mapping[n] for n in names if mapping.get(n) not in (None, ABSENT, {})}
    return words(known or mapping)


def _untimed(bundle: ReportedBundle) -> str:
    if bundle.has_times:
        return "no device here: the times are others' records"
    return "nothing"


def _software(manifest: Manifest) -> str:
    named = ("torch", "triton", "flydsl", "cuda", "hip", "driver", "python_abi")
    known = _known(manifest.target["software"], *named)
    stand_in = "; a stand-in, which install refuses"
    return known + (stand_in if manifest.software == "stand-in" else "")


def _signed(signed_by: tuple[Signer, ...]) -> str:
    some = (f"{one.keyid[:16]}… ({one.standing})" for one in signed_by)
    return ", ".join(some) or "nobody"


def _size(manifest: Manifest) -> str:
    whole = sum(entry.size_bytes for entry in manifest.files.values())
    parts = ", ".join(
        f"{part} {size_text(size)}" for part, (_, size) in sizes(manifest.files).items()
    )
    return f"{size_text(whole)} in {counted(len(manifest.files), 'file')}: {parts}"


def _command(manifest: Manifest) -> str:
    said = stated(manifest.provenance.get("command"), list)
    commit = manifest.provenance.get("commit")
    command = shlex.join(map(str, said)) or "unknown"
    return f"{command}, at commit {words(commit)[:12]}" if commit else command


def left_out(manifest: Manifest) -> tuple[LeftOut, ...]:
    """Return what the bundle does not hold or did not time, by reason."""
    found: list[LeftOut] = []
    for part in parts_of(manifest):
        coverage = part["coverage"]
        for what, name in (
            ("planned, and in no list", "missing"),
            ("without FlyDSL's candidates", "declined"),
        ):
            for why, some in stated(coverage.get(name), dict).items():
                named = tuple(map(words, stated(some, list)))
                found.append(LeftOut(what, words(why), len(named), named[:_SHOWN]))
        for what, name in (
            ("left to the library, untimed", "untimed"),
            ("not reached within the budget, or not to the end", "over_budget"),
            ("offered, and in no plan", "unplanned"),
        ):
            if named := tuple(map(words, stated(coverage.get(name), list))):
                found.append(LeftOut(what, "", len(named), named[:_SHOWN]))
        for way, number in stated(coverage.get("unreached"), dict).items():
            if isinstance(number, int):
                why = f"serving runs them by {words(way)}"
                found.append(LeftOut("not reached by Inductor", why, number, ()))
    return tuple(found)
