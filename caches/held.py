"""Which GEMMs a bundle holds, by its records and manifest; nothing of it is loaded."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from flytune.caches.bundle import Bundle
from flytune.caches.records import RECORDS_NAME, Status, TuningRecord, read_records
from flytune.caches.several import parts_of
from flytune.shapes.errors import FlytuneError
from flytune.shapes.logs.observed import ObservedGemm

# Of the manifest's coverage: a `GemmShape` in words, and where the model calls it.
_PLANNED = re.compile(r"(\w+) (?:(\d+)x)?\((\d+), (\d+), (\d+)\) at ")


class Holding(StrEnum):
    """What a bundle has of a GEMM."""

    HELD = "held"
    NO_CHOICE = "no choice"
    """In its graphs, where Inductor lowers it without a list to choose from."""
    MISSING = "missing"


class _Unlisted(NamedTuple):
    """A planned GEMM without a list, as far as the manifest tells."""

    op: str
    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class HeldGemms:
    """The GEMMs of one bundle."""

    decided: Mapping[int, tuple[TuningRecord, ...]]
    """By m, those whose list has a winner, or compiled candidates where nothing was
    timed."""
    unlisted: frozenset[_Unlisted]
    experts_per_token: int | None
    """Rows of a grouped GEMM for each token; None where the bundle does not tell."""

    def of(self, gemm: ObservedGemm) -> Holding:
        """Say what the bundle has of a GEMM.

        `tokens` are turned into `m` by the experts of a token.
        """
        if gemm.m is None and gemm.tokens is not None:
            if self.experts_per_token is None:
                return Holding.MISSING
            gemm = replace(gemm, m=gemm.tokens * self.experts_per_token)
        # Every form gives either; a capture of a long run has thousands of m.
        assert gemm.m is not None
        if any(gemm.may_be(record) for record in self.decided.get(gemm.m, ())):
            return Holding.HELD
        sizes = (gemm.batch, gemm.m, gemm.n, gemm.k)
        found = any(one.op in gemm.ops and one[1:] == sizes for one in self.unlisted)
        return Holding.NO_CHOICE if found else Holding.MISSING


def records_of(bundle: Bundle) -> tuple[TuningRecord, ...]:
    """Return a bundle's records, checked by its digests.

    Raises:
        FlytuneError: it has none, or a file breaks a rule of the bundle.
    """
    if RECORDS_NAME not in bundle.manifest.files:
        raise FlytuneError(f"bundle has no records: {bundle.path}")
    with tempfile.TemporaryDirectory(prefix="flytune-records-") as directory:
        placed = Path(directory) / "bundle"
        bundle.place(placed, only=[RECORDS_NAME])
        return read_records(placed / RECORDS_NAME)


def held_gemms(bundle: Bundle) -> HeldGemms:
    """Return what a bundle holds.

    Raises:
        FlytuneError: as `records_of`, or its program, policy or coverage is malformed.
    """
    kept: dict[object, TuningRecord] = {}
    by_m: dict[int, tuple[TuningRecord, ...]] = {}
    for record in records_of(bundle):
        if record.winner or record.status is Status.OK:
            kept.setdefault(_gemm_of(record), record)
    for record in kept.values():
        by_m[record.m] = (*by_m.get(record.m, ()), record)
    rows = {record.m for record in kept.values() if record.op == "grouped_mm"}
    parts = parts_of(bundle.manifest)
    try:
        tokens = {int(t) for part in parts for t in part["policy"].get("tokens") or ()}
        unlisted = frozenset(_unlisted(part["coverage"] for part in parts))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise FlytuneError(
            f"coverage or policy of the manifest is malformed: {bundle.path}"
        ) from error
    return HeldGemms(by_m, unlisted, experts_per_token(tokens, rows))


def _gemm_of(record: TuningRecord) -> tuple[object, ...]:
    return (
        *(record.op, record.m, record.n, record.k, record.batch, record.groups),
        *(record.a_dtype, record.b_dtype, record.out_dtype, record.layout),
        *(record.scaling, record.bias),
    )


def _unlisted(coverages: Iterable[Mapping[str, Any]]) -> Iterator[_Unlisted]:
    for coverage in coverages:
        # Shapes one by one are in no graph.
        if coverage.get("enumerated") != "program":
            continue
        for some in coverage["missing"].values():
            for found in filter(None, map(_PLANNED.match, some)):
                batch, *sizes = (int(each or 1) for each in found.groups()[1:])
                yield _Unlisted(found[1], batch, *sizes)


def experts_per_token(tokens: set[int], rows: set[int]) -> int | None:
    """Return the one number that turns the tokens of a build into its grouped rows."""
    if not tokens or not rows:
        return None
    ratio, rest = divmod(min(rows), min(tokens))
    fits = not rest and {ratio * count for count in tokens} == rows
    return ratio if fits else None
