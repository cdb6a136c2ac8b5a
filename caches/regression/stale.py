"""Rows and files of a bundle that do not belong together, as far as that is exact.

What can be decided: the timings file is what Inductor chooses by, and holds each
candidate by its choice hash; it is named after Triton and the runtime, which the
target's software has too; a bundle of bare kernels has a folder for each candidate. In
a baked bundle a kernel is fused with what is around it, so that no digest of a
candidate's own files is to be found there: the timings stand for it.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from flytune.caches.columns import Status
from flytune.caches.lists import TunedList
from flytune.caches.records import TuningRecord
from flytune.caches.regression.finding import (
    BUNDLE,
    Finding,
    Kind,
    found,
    noted,
    quoted,
)
from flytune.caches.regression.kernels import kernel_name
from flytune.caches.regression.sides import Side

_AGAIN = "build the bundle again, with --fresh where a work directory is at hand"


def stale(side: Side) -> Iterator[Finding]:
    """Yield the rows of a bundle that its files contradict."""
    yield from _software(side)
    for one in side.lists:
        yield from _timings(one, side.timings)
        yield from _baked(one)
    yield from _winners(side)
    if side.manifest.compiled_only:
        yield from _kernels(side)


def _software(side: Side) -> Iterator[Finding]:
    """Compare what the timings were made under with what the bundle is for."""
    for timings in side.timings:
        version = timings.get("system", {}).get("version", {})
        for name, part in (("triton", "triton_key"), ("cuda", "cuda"), ("hip", "hip")):
            stored, target = version.get(name), side.software(part)
            if None in (stored, target) or stored == target:
                continue
            text = (
                f"its timings were made under another {part}: {quoted(stored)}, the "
                f"bundle is for {quoted(target)}"
            )
            yield found(Kind.STALE, BUNDLE, text, _AGAIN, part=part)


def _timings(one: TunedList, files: tuple[Mapping[str, Any], ...]) -> Iterator[Finding]:
    """Ask the timings what Inductor would choose."""
    winner = one.winner
    if winner is None or len(one.records) < 2 or not files:
        return
    names = {record.choice_hash: record for record in one.records}
    for timings in files:
        stored = _row(timings, winner)
        if stored is None:
            continue
        known = {h: ms for h, ms in stored.items() if h in names and math.isfinite(ms)}
        lacking = [r for r in one.records if r.choice_hash not in stored]
        if lacking:
            text = f"no time for {kernel_name(lacking[0])}: serving would tune the list"
            yield found(Kind.STALE, one.name, text, _AGAIN)
        elif (
            known and (best := min(known, key=lambda h: known[h])) != winner.choice_hash
        ):
            text = (
                f"its winner is {kernel_name(winner)}, and the timings make Inductor "
                f"take {kernel_name(names[best])}"
            )
            yield found(Kind.STALE, one.name, text, _AGAIN)
        return
    text = "the timings hold nothing of it: serving would tune the list"
    yield found(Kind.STALE, one.name, text, _AGAIN)


def _row(timings: Mapping[str, Any], winner: TuningRecord) -> dict[str, float] | None:
    """Return the milliseconds of a list by choice hash; None where there is no list."""
    found_in: Any = timings["cache"]
    for key in (winner.inductor_op, winner.inputs_key, winner.precision):
        found_in = found_in.get(key) if isinstance(found_in, dict) else None
    if not isinstance(found_in, dict):
        return None
    return {k: ms for k, ms in found_in.items() if isinstance(ms, int | float)}


def _baked(one: TunedList) -> Iterator[Finding]:
    """Say where the graphs hold another kernel than the winner, which fused better."""
    baked = [record for record in one.records if record.baked]
    winner = one.winner
    if winner is not None and baked and not winner.baked:
        text = f"the graphs hold {kernel_name(baked[0])}, not {kernel_name(winner)}"
        yield noted(Kind.FUSED, one.name, text)


def _winners(side: Side) -> Iterator[Finding]:
    """Compare the manifest's winners with those of the records."""
    chosen = {
        (record.inductor_op, record.inputs_key, record.choice_hash)
        for one in side.lists
        for record in one.records
        if record.winner
    }
    for row in side.manifest.winners:
        if not {"op", "inputs_key", "choice_hash"} <= row.keys():
            continue
        if (row["op"], row["inputs_key"], row["choice_hash"]) not in chosen:
            text = f"the manifest's winner is not the records': {row['choice_hash']}"
            yield found(Kind.STALE, str(row.get("shape", BUNDLE)), text, _AGAIN)


def _kernels(side: Side) -> Iterator[Finding]:
    """Find the candidates of a bundle of bare kernels that have none."""
    files = side.manifest.files
    digests = {entry.sha256 for entry in files.values()}
    for one in side.lists:
        for record in one.records:
            if record.kernel_digest is None or record.status is not Status.OK:
                continue
            # FlyDSL's have one folder for all shapes, and one file each.
            if _folder(record) in files or record.kernel_digest in digests:
                continue
            text = f"the kernel of {kernel_name(record)} is not in the bundle"
            yield found(Kind.STALE, one.name, text, _AGAIN)


def _folder(record: TuningRecord) -> str:
    """Return the last file of a candidate's kernel, as `tuner.recall` names it."""
    name = hashlib.sha256(record.choice_hash.encode()).hexdigest()[:32]
    return f"kernels/{name}/built.json"
