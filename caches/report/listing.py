"""The table of all lists, and each one's candidates for whoever opens it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flytune.caches.columns import Status
from flytune.caches.records import TuningRecord
from flytune.caches.report.bundles import ReportedBundle, ReportedList
from flytune.caches.report.ceilings import Roof, roof_of
from flytune.caches.report.failures import is_failure
from flytune.caches.report.grids import style_of, where
from flytune.caches.report.passes import pass_us
from flytune.caches.report.races import noise_of
from flytune.caches.report.roofline import Roofline
from flytune.caches.report.work import moved_bytes, type_name, type_of
from flytune.caches.words import (
    NONE,
    counted,
    number_text,
    percent_text,
    ratio_text,
    seconds_text,
    time_text,
)

_MOST_CANDIDATES = 200
"""Of one list, in the page."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell of the table."""

    text: str
    order: float | None = None
    """What it is sorted by; None of a text, and of a number that is not known."""
    style: str = ""


@dataclass(frozen=True, slots=True)
class ListRow:
    """A list in the table."""

    number: int
    label: str
    modules: str
    cells: tuple[Entry, ...]


_COLUMNS = (
    ("tokens", "tokens of a forward pass"),
    ("weight", "outputs × inputs"),
    ("type", "what the multipliers work on"),
    ("calls", "calls in a forward pass of the whole model"),
    ("winner", "whose kernel was chosen"),
    ("time", "median of a call"),
    ("±", "median absolute deviation over the median"),
    ("over ATen", "times as fast as ATen's best"),
    ("tied", "candidates that cannot be told from the fastest"),
    ("cand.", "candidates in the list"),
    ("failed", "of them"),
    ("FLOP/s", "achieved"),
    ("B/s", "achieved, operands and result counted once"),
    ("of roof", "of what the device could reach at most"),
    ("of pass", "share of the GEMM time of its token count"),
)


def columns(bundle: ReportedBundle) -> tuple[tuple[str, str], ...]:
    """Return the columns after the first: a name, and what it means."""
    scale = "T" if _tera(bundle) else "G"
    return tuple(
        (f"{scale}{name}" if name in ("FLOP/s", "B/s") else name, what)
        for name, what in _COLUMNS
    )


def _tera(bundle: ReportedBundle) -> bool:
    """Whether rates are told in 10^12 a second; those of most CPUs are too low."""
    return max((one.achieved or 0.0 for one in bundle.lists), default=0.0) >= 1


def list_rows(bundle: ReportedBundle) -> tuple[ListRow, ...]:
    """Return a row a list, in the order of the bundle."""
    roof = roof_of(bundle)
    passes = {tokens: pass_us(bundle, tokens) for tokens in bundle.tokens}
    scale = 1.0 if _tera(bundle) else 1e3
    return tuple(
        ListRow(
            one.number,
            one.label,
            ", ".join(one.modules),
            tuple(_cells(one, roof, passes[one.tokens], scale)),
        )
        for one in bundle.lists
    )


def _cells(
    one: ReportedList, roof: Roof | None, whole: float | None, scale: float
) -> Iterator[Entry]:
    winner, aten = one.winner, one.speedup("aten")
    failed = sum(is_failure(record) for record in one.tuned.records)
    moved = moved_bytes(one.shape)
    tied = len(one.tuned.tied)
    spread = noise_of(winner) if winner else None
    reached = roof.share(one) if roof else None
    share = one.pass_us / whole if one.pass_us and whole else None
    done = one.achieved * scale if one.achieved else None
    rate = moved / one.us / 1e6 * scale if moved and one.us else None
    yield Entry(str(one.tokens), one.tokens)
    yield Entry(one.sizes, one.shape.n * one.shape.k)
    yield Entry(type_name(one.shape))
    yield Entry(str(one.calls), one.calls)
    style = f"tag b-{style_of(winner.backend)}" if winner else ""
    yield Entry(winner.backend if winner else "undecided", style=style)
    yield Entry(time_text(one.us), one.us)
    yield Entry(percent_text(spread), spread)
    yield Entry(ratio_text(aten), aten)
    yield Entry(str(tied) if tied > 1 else NONE, tied)
    yield Entry(str(len(one.tuned.records)), len(one.tuned.records))
    yield Entry(str(failed) if failed else NONE, failed)
    yield Entry(number_text(done), done)
    yield Entry(number_text(rate), rate)
    yield Entry(percent_text(reached), reached)
    yield Entry(percent_text(share), share)


def page_data(bundle: ReportedBundle, chart: Roofline | None) -> dict[str, Any]:
    """Return what the page's script shows: candidates, and the dots of the roofline.

    Args:
        chart: the bundle's roofline.
    """
    return {
        "lists": [
            {
                "name": f"{where(one)}: {one.shape}",
                "about": _about(one),
                "rows": [_row(one, r) for r in one.tuned.ranked[:_MOST_CANDIDATES]],
                "more": max(0, len(one.tuned.records) - _MOST_CANDIDATES),
            }
            for one in bundle.lists
        ],
        "dots": [
            [dot.x, dot.y, dot.number, dot.place]
            for dot in (chart.dots if chart else ())
        ],
    }


def _about(one: ReportedList) -> str:
    shape = one.shape
    first = one.tuned.records[0]
    method = next((r.method for r in one.tuned.records if r.method), None)
    words = [
        f"{', '.join(one.modules)}; {counted(one.calls, 'call')} in a forward pass",
        f"{type_of(shape)}, {shape.layout}{', with a bias' if shape.bias else ''}",
        f"Inductor asks for {first.inductor_op}" if first.inductor_op else "",
        f"Timed with {method}" if method else "",
        f"{seconds_text(first.batch_s)} on the device" if first.batch_s else "",
    ]
    return ". ".join(filter(None, words)) + "."


def _row(one: ReportedList, record: TuningRecord) -> list[str]:
    """Return a candidate's texts: whose, template, config, time, ±, over, state."""
    us = record.median_us if record.status is Status.OK else None
    fastest = next((r.median_us for r in one.tuned.timed()), None)
    over = us / fastest - 1 if us and fastest else None
    return [
        record.backend,
        style_of(record.backend),
        record.template or "",
        record.config,
        time_text(us),
        percent_text(noise_of(record)),
        NONE if over is None else "fastest" if not over else f"+{percent_text(over)}",
        _state(one, record),
    ]


def _state(one: ReportedList, record: TuningRecord) -> str:
    if record.status is not Status.OK:
        return f"{record.status}: {record.reason}"
    said = [
        "won" if record.winner else "",
        "baked" if record.baked else "",
        "tied" if len(one.tuned.tied) > 1 and record in one.tuned.tied else "",
        f"left out by {record.pruned_by}" if record.pruned_by else "",
        (record.reason or "not timed") if record.median_us is None else "",
    ]
    return ", ".join(filter(None, said))
