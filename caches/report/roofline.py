"""Every candidate against what the device reaches at most."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flytune.caches.report.axes import LogAxis, Tick
from flytune.caches.report.bundles import ReportedBundle, ReportedList
from flytune.caches.report.ceilings import Ceiling, Roof, roof_of
from flytune.caches.report.grids import style_of
from flytune.caches.report.work import short_type, tflops
from flytune.caches.words import percent_text, rate_text

LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT = 64, 820, 20, 400, 960, 446
_TEXTS = 34
# Pixels: of a letter's width, of a winner's radius, and between a slope and its words.
_LETTER, _DOT, _NEAR = 6.3, 5, 7


@dataclass(frozen=True, slots=True)
class Dot:
    """A candidate, or the winner of a list."""

    x: float
    y: float
    number: int
    """Of its list."""
    place: int
    """In the list's order."""


@dataclass(frozen=True, slots=True)
class Line:
    """A ceiling as it is drawn, and what is said at its end or along it."""

    x: float
    y: float
    x2: float
    y2: float
    texts: tuple[str, ...]
    text_x: float
    text_y: float
    angle: float
    """Degrees; 0 of what lies flat, whose texts stand beside it."""
    measured: bool


@dataclass(frozen=True, slots=True)
class Roofline:
    """The chart."""

    losers: tuple[tuple[str, str, int], ...]
    """Class and path of a backend's candidates that did not win, and how many."""
    winners: tuple[tuple[str, Dot], ...]
    dots: tuple[Dot, ...]
    """All of them, for whoever points at one."""
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    unit: str
    """Of the axis that goes up."""
    key: tuple[tuple[str, str, str], ...]
    """Class, name and candidates of each backend."""
    lead: str
    notes: tuple[str, ...]


def roofline(bundle: ReportedBundle) -> Roofline | None:
    """Return the chart; None where no candidate has a time."""
    roof = roof_of(bundle)
    timed = [one for one in bundle.lists if one.best_us and one.intensity]
    if roof is None or not timed:
        return None
    rates = [
        tflops(one.shape, us) for one in timed for us in _times(one) if us is not None
    ]
    tops = [roof.limit(one) or 0.0 for one in timed]
    x = _axis([one.intensity or 1.0 for one in timed], LEFT, RIGHT)
    y = _axis([*rates, *tops, *(c.value for c in roof.compute.values())], BOTTOM, TOP)
    dots = {one.number: tuple(_dots(one, x, y)) for one in timed}
    won = {
        one.number: next(
            (dot for dot in dots[one.number] if one.tuned.ranked[dot.place].winner),
            None,
        )
        for one in timed
    }
    return Roofline(
        tuple(_losers(timed, dots, won)),
        tuple(
            (style_of(one.winner.backend), dot)
            for one in timed
            if one.winner and (dot := won[one.number])
        ),
        tuple(dot for some in dots.values() for dot in some),
        tuple(_lines(roof, dots, x, y)),
        tuple(x.ticks()),
        *_rates(y),
        tuple(_key(bundle, timed)),
        _lead(timed, roof),
        tuple(_notes(roof)),
    )


def _rates(y: LogAxis) -> tuple[tuple[Tick, ...], str]:
    """Return the ticks of the axis that goes up, and the unit that fits them."""
    if y.high >= 2:
        return tuple(y.ticks()), "TFLOP/s"
    giga = LogAxis(1e3 * y.low, 1e3 * y.high, y.start, y.end)
    return tuple(giga.ticks()), "GFLOP/s"


def _times(one: ReportedList) -> Iterator[float | None]:
    yield from (record.median_us for record in one.tuned.timed())


def _axis(values: Iterable[float], start: float, end: float) -> LogAxis:
    some = [value for value in values if value > 0]
    return LogAxis(min(some) / 1.35, max(some) * 1.35, start, end)


def _dots(one: ReportedList, x: LogAxis, y: LogAxis) -> Iterator[Dot]:
    assert one.intensity is not None
    at = x.at(one.intensity)
    for place, record in enumerate(one.tuned.timed()):
        assert record.median_us is not None
        height = y.at(max(tflops(one.shape, record.median_us), y.low))
        yield Dot(at, height, one.number, place)


def _losers(
    timed: Iterable[ReportedList],
    dots: Mapping[int, tuple[Dot, ...]],
    won: Mapping[int, Dot | None],
) -> Iterator[tuple[str, str, int]]:
    """Yield each backend's candidates as one path, however many points it has."""
    paths: dict[str, list[str]] = {}
    for one in timed:
        for dot in dots[one.number]:
            if dot is not won[one.number]:
                style = style_of(one.tuned.ranked[dot.place].backend)
                paths.setdefault(style, []).append(f"M{dot.x:g} {dot.y:g}h0")
    for style, points in paths.items():
        yield style, "".join(points), len(points)


def _key(
    bundle: ReportedBundle, timed: Iterable[ReportedList]
) -> Iterator[tuple[str, str, str]]:
    some = Counter(record.backend for one in timed for record in one.tuned.timed())
    for backend in bundle.backends:
        if some[backend]:
            yield style_of(backend), backend, f"{some[backend]:,} timed"


def _lines(
    roof: Roof, dots: Mapping[int, tuple[Dot, ...]], x: LogAxis, y: LogAxis
) -> Iterator[Line]:
    memory = roof.memory.value
    top = max(ceiling.value for ceiling in roof.compute.values())
    left, right = max(x.low, y.low / memory), min(x.high, top / memory)
    if left < right:
        ends = (x.at(left), y.at(memory * left), x.at(right), y.at(memory * right))
        angle = math.degrees(math.atan2(ends[3] - ends[1], ends[2] - ends[0]))
        words = f"{rate_text(memory, 'B/s')}, {_how(roof.memory, 'a copy')}"
        place = _beside(ends, [dot for some in dots.values() for dot in some], words)
        yield Line(*ends, (words,), *place, round(angle, 1), roof.memory.measured)
    lowest = -math.inf
    for kind, ceiling in sorted(roof.compute.items(), key=lambda item: -item[1].value):
        knee = max(x.low, min(x.high, ceiling.value / memory))
        height = y.at(ceiling.value)
        # Below the one above it, whose two lines of text take so much.
        lowest = max(height, lowest + _TEXTS)
        texts = (
            rate_text(ceiling.value, "FLOP/s"),
            f"{short_type(kind)}, {_how(ceiling, 'a large GEMM')}",
        )
        flat = (x.at(knee), height, RIGHT, height)
        yield Line(*flat, texts, RIGHT + 8, lowest, 0.0, ceiling.measured)


def _beside(
    ends: tuple[float, float, float, float], dots: Iterable[Dot], words: str
) -> tuple[float, float]:
    """Return where the middle of a slope's words is: above it, and above each dot.

    Of the places where they need least height it is the one with most room.

    Args:
        ends: the slope's, in pixels, as `Line` has them.
    """
    x, y, x2, y2 = ends
    rise = (y2 - y) / (x2 - x)
    half = len(words) * _LETTER / 2 * math.cos(math.atan(rise)) + _DOT
    above = [(dot.x, y + rise * (dot.x - x) - dot.y) for dot in dots]
    between = sorted({x, x2, *(at for at, _ in above if x < at < x2)})
    places = []
    for low, high in itertools.pairwise(between):
        middle = max(x + half, min((low + high) / 2, x2 - half))
        heights = [height for at, height in above if abs(at - middle) < half]
        lift = max([0.0, *(height + _DOT for height in heights)]) + _NEAR
        places.append((lift, low - high, middle))
    lift, _, middle = min(places)
    return round(middle, 2), round(y + rise * (middle - x) - lift, 2)


def _how(ceiling: Ceiling, what: str) -> str:
    return what if ceiling.measured else "best seen"


def _lead(timed: Iterable[ReportedList], roof: Roof) -> str:
    parts = [
        (share, one.pass_us or 0.0)
        for one in timed
        if (share := roof.share(one)) is not None
    ]
    weight = sum(us for _, us in parts)
    if not weight:
        return ""
    mean = sum(share * us for share, us in parts) / weight
    lowest = min(share for share, _ in parts)
    return (
        f"By their time, the winners reach {percent_text(mean)} of the roof above "
        f"them; the lowest {percent_text(lowest)}."
    )


def _notes(roof: Roof) -> Iterator[str]:
    yield "Bytes are those of both operands and the result, each once." + (
        " A dot may lie above the slope: what came from cache was not moved, and a "
        "GEMM of few tokens hardly writes, while a copy writes as much as it reads."
        if roof.memory.measured
        else ""
    )
    unmeasured = not roof.memory.measured or not all(
        ceiling.measured for ceiling in roof.compute.values()
    )
    if unmeasured:
        yield (
            "Dashed: no ceiling was measured, and the best that any candidate reached "
            "stands for it."
        )
