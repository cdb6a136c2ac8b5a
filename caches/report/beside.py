"""Two or more bundles side by side: facts, forward passes, lists."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flytune.caches.inspect import words
from flytune.caches.report.bundles import ReportedBundle, ReportedList
from flytune.caches.report.grids import (
    CHANGE_STEPS,
    Cell,
    Grid,
    change_style,
    grid,
    style_of,
    where,
)
from flytune.caches.report.work import type_name
from flytune.caches.words import (
    NONE,
    counted,
    geometric_mean,
    seconds_text,
    time_text,
    tokens_text,
)

_MOST_LISTS = 400


@dataclass(frozen=True, slots=True)
class Value:
    """What one bundle has in a row."""

    text: str
    differs: bool = False
    """From the first bundle's."""
    backend: str = ""
    """Whose kernel won."""
    tag: str = ""
    """The part of a class that stands for it."""
    change: str = ""
    """Against the first one's time, with its sign."""
    style: str = ""
    """The class of the change's colour."""
    order: float | None = None
    """What the column is sorted by, where that is no text."""


@dataclass(frozen=True, slots=True)
class BesideRow:
    """One fact, token count or list, of each bundle."""

    name: str
    values: tuple[Value, ...]
    number: int = 0
    """Of the list in the first bundle that has it."""
    effect: float = 0.0
    """By how much the last bundle changes the list's time in a pass, in us."""


@dataclass(frozen=True, slots=True)
class Beside:
    """The tables of several bundles."""

    names: tuple[str, ...]
    facts: tuple[BesideRow, ...]
    passes: tuple[BesideRow, ...]
    lists: tuple[BesideRow, ...]
    left_out: int
    """Lists that are not shown, those with the least effect."""
    changes: Grid | None
    """Of each list's time, from the first bundle to the last; None where no list has
    one in both."""
    lead: str


def beside(bundles: Sequence[ReportedBundle]) -> Beside | None:
    """Return the tables; None of one bundle."""
    if len(bundles) < 2:
        return None
    rows = sorted(_list_rows(bundles), key=lambda row: -abs(row.effect))
    first, last = bundles[0], bundles[-1]
    return Beside(
        tuple(bundle.name for bundle in bundles),
        tuple(_fact_rows(bundles)),
        tuple(_pass_rows(bundles)),
        tuple(rows[:_MOST_LISTS]),
        max(0, len(rows) - _MOST_LISTS),
        _changes(first, last) if _shared([first, last])[0] else None,
        _lead(bundles),
    )


def _fact_rows(bundles: Sequence[ReportedBundle]) -> Iterator[BesideRow]:
    def row(name: str, texts: list[str]) -> BesideRow:
        values = (Value(text, differs=text != texts[0]) for text in texts)
        return BesideRow(name, tuple(values))

    manifests = [bundle.manifest for bundle in bundles]
    yield row("packed", [one.created for one in manifests])
    yield row("timed on", [one.timed_on or "nothing" for one in manifests])
    for part in ("hardware", "software"):
        yield from _differing(part, [one.target[part] for one in manifests])
    yield from _differing("policy", [one.policy for one in manifests])
    yield row("lists", [str(len(bundle.lists)) for bundle in bundles])
    candidates = [sum(len(o.tuned.records) for o in b.lists) for b in bundles]
    yield row("candidates", list(map(str, candidates)))
    yield row("size", [_megabytes(bundle) for bundle in bundles])


def _megabytes(bundle: ReportedBundle) -> str:
    size = sum(entry.size_bytes for entry in bundle.manifest.files.values())
    return f"{size / 1e6:.2f} MB in {counted(len(bundle.manifest.files), 'file')}"


def _differing(part: str, mappings: Sequence[Any]) -> Iterator[BesideRow]:
    """Yield the settings that are not the same everywhere."""
    names = dict.fromkeys(name for some in mappings for name in some)
    for name in names:
        texts = [words(some[name]) if name in some else NONE for some in mappings]
        if len(set(texts)) > 1:
            values = (Value(text, differs=text != texts[0]) for text in texts)
            yield BesideRow(f"{part}: {words(name)}", tuple(values))


def _pass_rows(bundles: Sequence[ReportedBundle]) -> Iterator[BesideRow]:
    """Yield the time of a pass, over the lists that all bundles have a time of."""
    shared = _shared(bundles)
    for tokens in sorted({t for bundle in bundles for t in bundle.tokens}):
        totals = [
            sum(one.pass_us or 0.0 for one in some if one.tokens == tokens)
            for some in shared
        ]
        if all(totals):
            values = tuple(map(_timed, totals, [None, *totals[:1] * len(totals)]))
            yield BesideRow(tokens_text(tokens), values)


def _shared(bundles: Sequence[ReportedBundle]) -> list[list[ReportedList]]:
    """Return of each bundle the lists that have a time in every one."""
    tables = [_by_identity(bundle) for bundle in bundles]
    keys = [key for key in tables[0] if all(key in table for table in tables)]
    timed = [key for key in keys if all(table[key].us for table in tables)]
    return [[table[key] for key in timed] for table in tables]


def _by_identity(bundle: ReportedBundle) -> dict[tuple[Any, ...], ReportedList]:
    found: dict[tuple[Any, ...], ReportedList] = {}
    for one in bundle.lists:
        found.setdefault(one.tuned.identity, one)
    return found


def _list_rows(bundles: Sequence[ReportedBundle]) -> Iterator[BesideRow]:
    tables = [_by_identity(bundle) for bundle in bundles]
    for key in dict.fromkeys(key for table in tables for key in table):
        lists = [table.get(key) for table in tables]
        named = next(one for one in lists if one is not None)
        first, last = lists[0], lists[-1]
        effect = 0.0
        if first and last and first.us and last.us:
            effect = (last.us - first.us) * last.calls
        name = f"{named.label}, {tokens_text(named.tokens)}, {named.sizes}"
        values = tuple(map(_value, lists, [None, *lists[:1] * len(lists)]))
        yield BesideRow(
            f"{name} {type_name(named.shape)}", values, named.number, effect
        )


def _value(one: ReportedList | None, first: ReportedList | None) -> Value:
    if one is None:
        return Value("absent", differs=True)
    winner = one.winner.backend if one.winner else "undecided"
    before = first.winner if first else None
    differs = before is not None and before.backend != winner
    timed = _timed(one.us, first.us if first else None)
    return replace(timed, differs=differs, backend=winner, tag=style_of(winner))


def _changes(first: ReportedBundle, last: ReportedBundle) -> Grid:
    table = _by_identity(last)

    def cell(one: ReportedList) -> Cell:
        other = table.get(one.tuned.identity)
        if other is None or not one.us or not other.us:
            return Cell(NONE, "none", f"{where(one)}: no time in both", one.number)
        change = other.us / one.us - 1
        tip = f"{where(one)}: {time_text(one.us)}, then {time_text(other.us)}"
        return Cell(
            _signed_number(100 * change, 0), change_style(change), tip, one.number
        )

    edges = [f"{_signed_number(100 * edge, 0)} %" for edge in CHANGE_STEPS]
    middle = len(edges) // 2
    legend = [(f"d d{n}", f"to {edge}") for n, edge in enumerate(edges[:middle])]
    legend.append((f"d d{middle}", "alike"))
    legend += [
        (f"d d{middle + n}", f"from {edge}") for n, edge in enumerate(edges[middle:], 1)
    ]
    title = f"Change of time in %, {first.name} to {last.name}"
    return grid(title, first, cell, tuple(legend))


def _timed(us: float | None, first: float | None) -> Value:
    if us is None or not first:
        return Value(time_text(us), order=us)
    change = us / first - 1
    return Value(
        time_text(us),
        change=_percent(change),
        style=change_style(change),
        order=us,
    )


def _signed_number(value: float, digits: int) -> str:
    """Return a number with its sign; one that rounds to nothing has none."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"{'+' if value > 0 else '−'}{text}"


def _lead(bundles: Sequence[ReportedBundle]) -> str:
    shared = _shared(bundles)
    if not shared[0]:
        return "No list has a time in all of them."
    first, last = shared[0], shared[-1]
    ratio = geometric_mean(
        (b.us or 1.0) / (a.us or 1.0) for a, b in zip(first, last, strict=True)
    )
    whole = [sum(one.pass_us or 0.0 for one in some) for some in (first, last)]
    return (
        f"With a time in all: {counted(len(first), 'list')}. From {bundles[0].name} to "
        f"{bundles[-1].name} all their calls together go from "
        f"{seconds_text(whole[0] / 1e6)} to {seconds_text(whole[1] / 1e6)} "
        f"({_percent(whole[1] / whole[0] - 1)}); the geometric mean of a call changes "
        f"by {_percent((ratio or 1.0) - 1)}. These are differences of stored medians: "
        "flytune check says which of them are regressions."
    )


def _percent(change: float) -> str:
    return f"{_signed_number(100 * change, 1)} %"
