"""Heat maps of layers by token counts: who won, and by how much."""

import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flytune.caches.report.bundles import ReportedBundle, ReportedList, in_order
from flytune.caches.report.work import type_name, type_of
from flytune.caches.words import (
    NONE,
    counted,
    geometric_mean,
    joined,
    percent_text,
    ratio_text,
    time_text,
    tokens_text,
)

SPEEDUP_STEPS = (1.005, 1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0)
"""Where a speed-up's shade changes."""
CHANGE_STEPS = (-0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2)
"""Where the shade of a change of time changes."""
_SLOWER = 0.995
_DENSE = 16
"""Columns above which cells hold no text."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One list of a heat map, or none."""

    text: str
    style: str
    """The class of its colour."""
    tip: str
    number: int | None
    """Of its list."""


@dataclass(frozen=True, slots=True)
class GridRow:
    """One layer at every token count."""

    label: str
    detail: str
    """Sizes of the weight, and the type."""
    cells: tuple[Cell, ...]
    alone: bool
    """Whether no other row has its label."""


@dataclass(frozen=True, slots=True)
class Grid:
    """One heat map."""

    title: str
    columns: tuple[int, ...]
    rows: tuple[GridRow, ...]
    legend: tuple[tuple[str, str], ...]
    """The class of a colour and what it stands for."""

    @property
    def dense(self) -> bool:
        """Whether cells are too narrow for text."""
        return len(self.columns) > _DENSE


Layer = tuple[object, ...]


def layer_of(one: ReportedList) -> Layer:
    """Return what lists of one layer share, whatever the tokens."""
    shape = one.shape
    return (
        *(one.modules, shape.op, shape.n, shape.k, shape.groups, shape.layout),
        *(shape.batch, type_of(shape), shape.out_dtype, shape.bias, shape.tp),
        *(shape.ep, shape.engine, one.tuned.records[0].inductor_op),
    )


def layers(bundle: ReportedBundle) -> dict[Layer, dict[int, ReportedList]]:
    """Return the lists by layer and tokens, in their order.

    Of lists that differ in neither, such as in strides alone, each has a layer.
    """
    found: dict[Layer, dict[int, ReportedList]] = {}
    for one in bundle.lists:
        number, layer = 0, (layer_of(one), 0)
        while one.tokens in found.setdefault(layer, {}):
            number += 1
            layer = (layer_of(one), number)
        found[layer][one.tokens] = one
    return found


def winners_grid(bundle: ReportedBundle) -> Grid:
    """Return who won each list."""

    def cell(one: ReportedList) -> Cell:
        winner = one.winner
        if winner is None or len(one.tuned.records) == 1:
            why = "one candidate" if winner else "nothing decided"
            return Cell(NONE, "none", f"{where(one)}: {why}", one.number)
        tip = f"{where(one)}: {winner.backend} {winner.template or ''}"
        time = f", {time_text(one.us)}" if one.us else ", not timed"
        tied = len(one.tuned.tied) - 1
        tip += time + (f", tied with {counted(tied, 'other')}" if tied > 0 else "")
        faint = "" if one.us else " faint"
        style = f"backend b-{style_of(winner.backend)}{faint}"
        return Cell(winner.backend, style, tip, one.number)

    won = in_order(one.winner.backend for one in bundle.lists if one.winner)
    legend = tuple((f"backend b-{style_of(backend)}", backend) for backend in won)
    return grid("Who won", bundle, cell, legend)


def speedup_grids(bundle: ReportedBundle) -> tuple[Grid, ...]:
    """Return a heat map a backend: how many times as fast as its best the winner is."""
    grids = []
    for backend in bundle.backends:
        rivals = [one for one in bundle.lists if len(one.best_us) > 1]
        if any(one.speedup(backend) for one in rivals):
            grids.append(_speedups(bundle, backend))
    return tuple(grids)


def _speedups(bundle: ReportedBundle, backend: str) -> Grid:
    def cell(one: ReportedList) -> Cell:
        ratio = one.speedup(backend)
        if ratio is None:
            return Cell(NONE, "none", f"{where(one)}: no time of {backend}", one.number)
        best = time_text(one.best_us[backend])
        tip = f"{where(one)}: {time_text(one.us)}; best of {backend} {best}"
        return Cell(f"{ratio:.2f}", speedup_style(ratio), tip, one.number)

    legend = [("s slower", "tied, slower"), ("s s0", "no faster")]
    legend += [(f"s s{n}", f"{e:g}×") for n, e in enumerate(SPEEDUP_STEPS, 1)]
    return grid(f"Speed-up over {backend}'s best", bundle, cell, tuple(legend))


def speedup_style(ratio: float) -> str:
    """Return the class of a speed-up's colour."""
    if ratio < _SLOWER:
        return "s slower"
    return f"s s{bisect.bisect_right(SPEEDUP_STEPS, ratio)}"


def change_style(change: float) -> str:
    """Return the class of a colour: of a time that is larger by a share, or smaller."""
    return f"d d{bisect.bisect_right(CHANGE_STEPS, change)}"


def style_of(backend: str) -> str:
    """Return the part of a class that stands for a backend; "other" for most."""
    known = ("aten", "triton", "flydsl", "cpp")
    if backend in ("decompose_k", "subgraph"):
        return "subgraph"
    return backend if backend in known else "other"


def grid(
    title: str,
    bundle: ReportedBundle,
    cell: Callable[[ReportedList], Cell],
    legend: tuple[tuple[str, str], ...],
) -> Grid:
    """Return a heat map of a bundle's lists.

    Args:
        cell: what a list is in it.
        legend: as `Grid.legend`.
    """
    columns = bundle.tokens
    rows = []
    found = layers(bundle).values()
    labels = Counter(next(iter(some.values())).label for some in found)
    for some in found:
        first = next(iter(some.values()))
        cells = tuple(
            cell(some[tokens]) if tokens in some else Cell("", "absent", "", None)
            for tokens in columns
        )
        detail = f"{first.sizes} {type_name(first.shape)}"
        rows.append(GridRow(first.label, detail, cells, labels[first.label] == 1))
    return Grid(title, columns, tuple(rows), legend)


def where(one: ReportedList) -> str:
    """Return a list's module and tokens in words."""
    return f"{one.label}, {tokens_text(one.tokens)}"


def choice_lead(bundle: ReportedBundle) -> str:
    """Return in a sentence or two who won, and what that is worth over ATen."""
    chosen = [one for one in bundle.lists if one.winner and len(one.tuned.records) > 1]
    if not chosen:
        return "No list has been decided between candidates."
    won = Counter(one.winner.backend for one in chosen if one.winner)
    words = joined(f"{backend} {won[backend]}" for backend in in_order(won))
    lead = f"Of {counted(len(chosen), 'list')} with a choice, won: {words}."
    return f"{lead} {_worth(chosen)}".strip()


def _worth(chosen: Sequence[ReportedList]) -> str:
    pairs = [(ratio, one) for one in chosen if (ratio := one.speedup("aten"))]
    mean = geometric_mean(ratio for ratio, _ in pairs)
    if mean is None:
        return ""
    most, best = max(pairs, key=lambda pair: pair[0])
    gained = sum(ratio >= SPEEDUP_STEPS[1] for ratio, _ in pairs)
    words = (
        f"Over ATen alone that is {ratio_text(mean)} as fast in the geometric mean; "
    )
    if not gained:
        return f"{words}no list gains 2 %."
    return (
        f"{words}{percent_text(gained / len(pairs))} of the lists gain 2 % or more, "
        f"{where(best)} the most: {ratio_text(most)}."
    )
