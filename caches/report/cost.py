"""What a build took: its stages, its lists over time, and what compiling cost."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from flytune.caches.report.axes import LinearAxis, Tick
from flytune.caches.report.budgets import unreached_text
from flytune.caches.report.bundles import ReportedBundle, ReportedList, stated
from flytune.caches.report.grids import style_of
from flytune.caches.report.paid import paid
from flytune.caches.several import parts_of
from flytune.caches.words import counted, percent_text, seconds_text

LEFT, RIGHT, WIDTH = 64, 900, 960
_CHARACTER = 6.6


@dataclass(frozen=True, slots=True)
class StageBar:
    """One stage of a build on its axis of time."""

    name: str
    x: float
    width: float
    text: str
    """What fits into it."""
    tip: str
    shade: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """What compiling one backend's candidates took."""

    backend: str
    candidates: int
    median_s: float
    longest_s: float
    total_s: float

    @property
    def style(self) -> str:
        """The part of a class that stands for the backend."""
        return style_of(self.backend)


@dataclass(frozen=True, slots=True)
class Cost:
    """The chart and the tables."""

    stages: tuple[StageBar, ...]
    decided: str
    """A path: lists decided by then; nothing where the bundle does not say."""
    ticks: tuple[Tick, ...]
    counts: tuple[Tick, ...]
    compiled: tuple[Compiled, ...]
    dearest: tuple[tuple[ReportedList, float, float], ...]
    """Lists that had the device longest: seconds there, and of compiling."""
    lead: str


def cost(bundle: ReportedBundle) -> Cost | None:
    """Return what a build took; None where a bundle says nothing of it."""
    stages = list(_stages(bundle))
    decided = sorted(
        at for one in bundle.lists if (at := one.tuned.records[0].at_s) is not None
    )
    compiled = tuple(_compiled(bundle))
    dearest = _dearest(bundle)
    if not (stages or decided or compiled or dearest):
        return None
    whole = max([sum(seconds for _, seconds in stages), *decided[-1:]]) / 60
    x = LinearAxis(0.0, whole or 1.0, LEFT, RIGHT)
    y = LinearAxis(0.0, float(len(decided) or 1), 180, 64)
    return Cost(
        tuple(_bars(stages, x)),
        _steps(decided, x, y),
        tuple(x.ticks(8)) if whole else (),
        tuple(t for t in y.ticks(4) if "." not in t.text) if decided else (),
        compiled,
        dearest,
        _lead(bundle, stages),
    )


def _stages(bundle: ReportedBundle) -> Iterator[tuple[str, float]]:
    """Yield name and seconds of each stage, of a merged bundle one build's after all's.

    What a manifest holds besides is no stage.
    """
    for part in parts_of(bundle.manifest):
        for row in stated(part["provenance"].get("stages"), list):
            pair = row if isinstance(row, list) and len(row) == 2 else ("", None)
            name, seconds = pair
            if isinstance(seconds, int | float) and 0 <= seconds < 1e9:
                yield str(name), float(seconds)


def _bars(stages: list[tuple[str, float]], x: LinearAxis) -> Iterator[StageBar]:
    before = 0.0
    for number, (name, seconds) in enumerate(stages):
        start, end = x.at(before / 60), x.at((before + seconds) / 60)
        before += seconds
        said = f"{name} {seconds_text(seconds)}"
        width = max(end - start, 0.5)
        fits = (t for t in (said, name) if len(t) * _CHARACTER + 10 < width)
        yield StageBar(name, start, width, next(fits, ""), said, number % 5)


def _steps(decided: list[float], x: LinearAxis, y: LinearAxis) -> str:
    if not decided:
        return ""
    path = [f"M{x.at(0):g} {y.at(0):g}"]
    for number, at in enumerate(decided, 1):
        path.append(f"H{x.at(at / 60):g}V{y.at(number):g}")
    return "".join(path)


def _compiled(bundle: ReportedBundle) -> Iterator[Compiled]:
    every = [record for one in bundle.lists for record in one.tuned.records]
    for backend in bundle.backends:
        took = [r.compile_s for r in every if r.backend == backend and r.compile_s]
        if took:
            middle = statistics.median(took)
            yield Compiled(backend, len(took), middle, max(took), sum(took))


def _dearest(bundle: ReportedBundle) -> tuple[tuple[ReportedList, float, float], ...]:
    rows = [
        (one, seconds, sum(r.compile_s or 0.0 for r in one.tuned.records))
        for one in bundle.lists
        if (seconds := one.tuned.records[0].batch_s) is not None
    ]
    return tuple(sorted(rows, key=lambda row: -row[1])[:8])


def device_s(bundle: ReportedBundle) -> float:
    """Return the seconds that lists had the device, all of them together."""
    return sum(one.tuned.records[0].batch_s or 0.0 for one in bundle.lists)


def _expected(bundle: ReportedBundle) -> Iterator[str]:
    """Say what the build was expected to take, and when it has paid for itself."""
    manifest = bundle.manifest
    row = stated(manifest.provenance.get("estimate"), dict)
    seconds, took_s = row.get("seconds"), row.get("took_s")
    if isinstance(seconds, int | float) and isinstance(took_s, int | float) and took_s:
        yield (
            f"Before the start {seconds_text(seconds)} were expected: "
            f"{seconds / took_s:.2f} of what it took."
        )
    if text := unreached_text(stated(manifest.provenance.get("budget"), dict)):
        yield f"Its budget of {text}."
    if (found := paid(manifest, [one.tuned for one in bundle.lists])) is not None:
        yield found.text


def _lead(bundle: ReportedBundle, stages: list[tuple[str, float]]) -> str:
    whole = sum(seconds for _, seconds in stages)
    words = []
    if whole:
        name, longest = max(stages, key=lambda stage: stage[1])
        words.append(
            f"The build took {seconds_text(whole)}, of it {name} "
            f"{percent_text(longest / whole)}."
        )
    candidates = sum(len(one.tuned.records) for one in bundle.lists)
    if device := device_s(bundle):
        words.append(
            f"Checking and timing {counted(candidates, 'candidate')} had the device "
            f"for {seconds_text(device)}."
        )
    total = sum(one.total_s for one in _compiled(bundle))
    if total:
        words.append(f"Compiling took {seconds_text(total)} of one core's time.")
    words += _expected(bundle)
    return " ".join(words)
