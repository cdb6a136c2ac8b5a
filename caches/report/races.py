"""How sure the times are: each race's field, and the noise of all candidates."""

import bisect
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flytune.caches.records import TuningRecord
from flytune.caches.report.axes import LinearAxis, LogAxis, Tick
from flytune.caches.report.bundles import ReportedBundle, ReportedList
from flytune.caches.report.grids import style_of
from flytune.caches.ties import TIE_BAND
from flytune.caches.words import (
    counted,
    percent_text,
    ratio_text,
    time_text,
    tokens_text,
)

LEFT, RIGHT, WIDTH = 250, 830, 960
ROW, TOP = 22, 26
SLOWEST = 2.0
"""Where the axis of the races ends, over the fastest."""
_MOST_RACES = 24
_LONGEST_LABEL = 34


@dataclass(frozen=True, slots=True)
class Runner:
    """One candidate of a race."""

    x: float
    style: str
    won: bool
    place: int


@dataclass(frozen=True, slots=True)
class Race:
    """One list: its candidates' times over the fastest."""

    number: int
    y: int
    label: str
    runners: tuple[Runner, ...]
    spread: tuple[float, float]
    """Pixels of the winner's median less and more its deviation."""
    beyond: int
    """Candidates off the axis."""
    said: str
    """How many are tied, where that is more than one."""


@dataclass(frozen=True, slots=True)
class Races:
    """The chart of the lists that take the most time."""

    rows: tuple[Race, ...]
    height: int
    ticks: tuple[Tick, ...]
    band: tuple[float, float]
    """Pixels within which candidates are tied however sure the difference."""
    lead: str
    shown: str
    """Which lists, in words."""


@dataclass(frozen=True, slots=True)
class Noise:
    """A histogram of the candidates' deviation over their median."""

    bars: tuple[tuple[float, float, int, str], ...]
    """Left edge, width, count and words of each."""
    most: int
    ticks: tuple[Tick, ...]
    marks: tuple[tuple[float, str], ...]
    """Pixels and words of the median and of the 95th percentile."""
    lead: str


@dataclass(frozen=True, slots=True)
class Canary:
    """The same GEMM's time through a build, over its median."""

    points: tuple[tuple[float, float, str], ...]
    y_ticks: tuple[Tick, ...]
    x_ticks: tuple[Tick, ...]
    band: tuple[float, float]
    """Pixels of one per cent less and more."""
    lead: str


def races(bundle: ReportedBundle) -> Races | None:
    """Return the chart; None where no list has two times."""
    raced = [one for one in bundle.lists if len(list(one.tuned.timed())) > 1]
    if not raced:
        return None
    longest = sorted(raced, key=lambda one: -(one.pass_us or 0.0))[:_MOST_RACES]
    axis = LogAxis(0.99, SLOWEST * 1.01, LEFT, RIGHT)
    rows = tuple(
        _race(one, TOP + ROW * row + ROW // 2, axis) for row, one in enumerate(longest)
    )
    ticks = tuple(
        Tick(axis.at(value), ratio_text(value)) for value in (1, 1.1, 1.2, 1.5, 2)
    )
    band = (axis.at(1.0), axis.at(1.0 + TIE_BAND))
    height = TOP + ROW * len(rows) + 8
    return Races(rows, height, ticks, band, _races_lead(raced), _shown(rows, raced))


def _races_lead(raced: Sequence[ReportedList]) -> str:
    if not any(noise_of(r) is not None for one in raced for r in one.tuned.timed()):
        return "Each time is one number: how sure it is cannot be told."
    tied = sum(len(one.tuned.tied) > 1 for one in raced)
    if not tied:
        return (
            f"In none of {counted(len(raced), 'list')} is another candidate tied with "
            "the fastest."
        )
    return (
        f"In {tied} of {counted(len(raced), 'list')} more than one candidate is tied "
        "with the fastest: there the fixed order decides, and another build may see "
        "another one ahead."
    )


def _shown(rows: Sequence[Race], raced: Sequence[ReportedList]) -> str:
    if len(rows) == len(raced):
        return f"all {counted(len(raced), 'list')} with two times or more"
    return f"the {len(rows)} of {counted(len(raced), 'list')} that take the most time"


def _race(one: ReportedList, y: int, axis: LogAxis) -> Race:
    timed = list(one.tuned.timed())
    fastest = timed[0].median_us or 1.0
    ratios = [(record.median_us or fastest) / fastest for record in timed]
    runners = tuple(
        Runner(axis.at(ratio), style_of(record.backend), record.winner, place)
        for place, (record, ratio) in enumerate(zip(timed, ratios, strict=True))
        if ratio <= SLOWEST
    )
    label = f"{one.label}, {tokens_text(one.tokens)}"
    if len(label) > _LONGEST_LABEL:
        label = f"{label[: _LONGEST_LABEL - 1]}…"
    tied = len(one.tuned.tied)
    said = str(tied) if tied > 1 else ""
    beyond = len(timed) - len(runners)
    return Race(one.number, y, label, runners, _spread(one, axis), beyond, said)


def _spread(one: ReportedList, axis: LogAxis) -> tuple[float, float]:
    record = one.winner or next(one.tuned.timed())
    fastest = next(one.tuned.timed()).median_us
    if not fastest or record.median_us is None:
        return axis.start, axis.start
    mad = record.mad_us or 0.0
    low, high = ((record.median_us + sign * mad) / fastest for sign in (-1, 1))
    return axis.at(max(low, axis.low)), axis.at(min(max(high, axis.low), axis.high))


def noise_of(record: TuningRecord) -> float | None:
    """Return a candidate's deviation over its median; None of a time without one.

    A recorded time is one number, and so is one of a single round.
    """
    if not record.median_us or record.mad_us is None or len(set(record.samples_us)) < 2:
        return None
    return record.mad_us / record.median_us


def noise(bundle: ReportedBundle) -> Noise | None:
    """Return the histogram; None where no time has a spread."""
    records = [r for one in bundle.lists for r in one.tuned.timed()]
    values = sorted(v for r in records if (v := noise_of(r)) is not None)
    if not values:
        return None
    edges = [10 ** (power / 6 - 4) for power in range(19)]
    axis = LogAxis(edges[0], edges[-1], 40, 440)
    inside = [min(max(value, edges[0]), edges[-1] * 0.999) for value in values]
    counts = [0] * (len(edges) - 1)
    for value in inside:
        counts[bisect.bisect_right(edges, value) - 1] += 1
    bars = tuple(
        (
            axis.at(low) + 1,
            axis.at(high) - axis.at(low) - 2,
            count,
            f"{counted(count, 'candidate')} of {100 * low:.2g} to {100 * high:.2g} %",
        )
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    )
    middle, late = statistics.median(values), values[math.ceil(0.95 * len(values)) - 1]
    marks = tuple(
        (axis.at(min(max(v, edges[0]), edges[-1])), f"{word} {percent_text(v)}")
        for v, word in ((middle, "median"), (late, "95 %:"))
    )
    ticks = tuple(
        Tick(axis.at(value), f"{100 * value:g} %") for value in (1e-4, 1e-3, 1e-2, 1e-1)
    )
    lead = (
        f"Half of {counted(len(values), 'timed candidate')} vary by less than "
        f"{percent_text(middle)} from round to round (median absolute deviation), "
        f"95 % by less than {percent_text(late)}."
    )
    return Noise(bars, max(counts), ticks, marks, lead)


def canary(bundle: ReportedBundle) -> Canary | None:
    """Return the canary through the build; None where fewer than two lists have it."""
    seen = sorted(_canaries(bundle))
    if len(seen) < 2:
        return None
    middle = statistics.median(us for _, us in seen)
    moves = [us / middle - 1 for _, us in seen]
    # In percent, and never so near that a hundredth looks much.
    low, high = min(-1.5, 110 * min(moves)), max(1.5, 110 * max(moves))
    # Of the build's time only that of timing, which may be short.
    first, last = seen[0][0] / 60, seen[-1][0] / 60
    x, y = LinearAxis(first, last, 58, 434), LinearAxis(low, high, 150, 14)
    points = tuple(
        (
            x.at(at / 60),
            y.at(100 * move),
            f"{time_text(us)}, {100 * move:+.2f} % after {at / 60:.1f} min",
        )
        for (at, us), move in zip(seen, moves, strict=True)
    )
    ticks = tuple(Tick(tick.at, f"{tick.text} %") for tick in y.ticks(4))
    calm = sum(abs(move) <= 0.01 for move in moves)
    lead = (
        f"The canary, a GEMM that is always the same, took {time_text(middle)}; in "
        f"{calm} of {counted(len(seen), 'batch', 'batches')} within 1 % of that."
    )
    band = (y.at(1.0), y.at(-1.0))
    return Canary(points, ticks, tuple(x.ticks(5)), band, lead)


def _canaries(bundle: ReportedBundle) -> Iterator[tuple[float, float]]:
    for one in bundle.lists:
        for record in _with_canary(one.tuned.records):
            yield record.at_s or 0.0, record.canary_us or 0.0
            break


def _with_canary(records: Sequence[TuningRecord]) -> list[TuningRecord]:
    return [r for r in records if r.canary_us and r.at_s is not None]
