"""Where the time of a forward pass's GEMMs goes: by module and token count."""

from collections import defaultdict
from dataclasses import dataclass

from flytune.caches.report.axes import LinearAxis, Tick
from flytune.caches.report.bundles import ReportedBundle, ReportedList
from flytune.caches.words import (
    counted,
    joined,
    percent_text,
    ratio_text,
    time_text,
    tokens_text,
)
from flytune.shapes.by_hand import BY_HAND

LEFT, RIGHT, WIDTH = 64, 790, 960
"""Pixels: where bars begin and end, and the whole chart's width."""
ROW, BAR, TOP = 30, 22, 26
_MOST_ROWS = 40
_CHARACTER = 6.4
"""Pixels of a character of a label, about."""
_FAMILIES = (
    ("attention", ("attn", "attention", "mixer")),
    ("experts", ("expert", "moe")),
    ("mlp", ("mlp", "ffn", "feed_forward", "gate", "up_proj", "down_proj")),
    ("head", ("lm_head", "head", "embed")),
)
_SHADES = 5
_PLACES = ("q_", "k_", "v_", "qkv", "kv", "o_", "gate", "up_", "down")
"""Beginnings of names, in the order in which a layer runs them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One module's part of a bar."""

    module: str
    family: str
    shade: int
    x: float
    width: float
    text: str
    """What fits into it; nothing where it is narrow."""
    tip: str


@dataclass(frozen=True, slots=True)
class Bar:
    """The forward pass of one token count."""

    tokens: int
    y: int
    segments: tuple[Segment, ...]
    total: str
    speedup: str
    """Over ATen's best of each list."""


@dataclass(frozen=True, slots=True)
class PassChart:
    """The chart; bars share a scale of shares, for their times differ much."""

    bars: tuple[Bar, ...]
    height: int
    ticks: tuple[Tick, ...]
    legend: tuple[tuple[str, str, int], ...]
    """Module, family and shade."""
    lead: str
    notes: tuple[str, ...]


def pass_us(bundle: ReportedBundle, tokens: int, backend: str = "") -> float | None:
    """Return a pass's time with the winners, or with the best of one backend.

    A list without that backend's time counts with its winner. None where no list of
    the token count has a time.
    """
    times = [
        one.best_us.get(backend, one.us or 0.0) * one.calls
        for one in bundle.lists
        if one.tokens == tokens and one.us
    ]
    return sum(times) if times else None


def shares(bundle: ReportedBundle, tokens: int) -> dict[str, float]:
    """Return each module's microseconds in a pass, in the order of the lists."""
    found: dict[str, float] = defaultdict(float)
    for one in bundle.lists:
        if one.tokens == tokens and one.us:
            for label, count in zip(one.labels, one.counts.values(), strict=True):
                found[label] += one.us * count
    return dict(found)


def pass_chart(bundle: ReportedBundle) -> PassChart | None:
    """Return the chart; None where nothing has a time."""
    counts = [t for t in bundle.tokens if shares(bundle, t)]
    if not counts:
        return None
    shown = spread_over(counts, _MOST_ROWS)
    styles = _styles(bundle)
    axis = LinearAxis(0.0, 1.0, LEFT, RIGHT)
    bars = tuple(
        _bar(bundle, tokens, TOP + ROW * row, styles, axis)
        for row, tokens in enumerate(shown)
    )
    ticks = tuple(Tick(axis.at(n / 4), f"{25 * n} %") for n in range(5))
    return PassChart(
        bars,
        TOP + ROW * len(bars) + 4,
        ticks,
        tuple((label, *style) for label, style in styles.items()),
        _lead(bundle, counts),
        tuple(_notes(bundle, len(shown), len(counts))),
    )


def _bar(
    bundle: ReportedBundle,
    tokens: int,
    y: int,
    styles: dict[str, tuple[str, int]],
    axis: LinearAxis,
) -> Bar:
    parts = shares(bundle, tokens)
    whole, before = sum(parts.values()), 0.0
    segments = []
    for label in (label for label in styles if label in parts):
        us = parts[label]
        x, end = axis.at(before / whole), axis.at((before + us) / whole)
        before += us
        share = f"{100 * us / whole:.0f} %"
        texts = (f"{label} {share}", label, share)
        width = end - x
        fits = (t for t in texts if len(t) * _CHARACTER + 10 < width)
        tip = f"{label} at {tokens_text(tokens)}: {time_text(us)}, {share} of the pass"
        segments.append(
            Segment(label, *styles[label], x, max(width, 0.5), next(fits, ""), tip)
        )
    aten = pass_us(bundle, tokens, "aten")
    speedup = ratio_text(aten / whole if aten else None)
    return Bar(tokens, y, tuple(segments), time_text(whole), speedup)


def _styles(bundle: ReportedBundle) -> dict[str, tuple[str, int]]:
    """Return family and shade of each module, family by family."""
    members: dict[str, list[str]] = {name: [] for name, _ in _FAMILIES}
    members["other"] = []
    for one in bundle.lists:
        for module, label in zip(one.modules, one.labels, strict=True):
            family = members[family_of(module)]
            if one.us and label not in family:
                family.append(label)
    return {
        label: (family, number % _SHADES)
        for family, labels in members.items()
        for number, label in enumerate(sorted(labels, key=_place))
    }


def _place(label: str) -> int:
    name = label.rpartition(".")[2]
    fits = (n for n, start in enumerate(_PLACES) if name.startswith(start))
    return next(fits, len(_PLACES))


def family_of(module: str) -> str:
    """Return the kind of block that a module belongs to, by its name."""
    lower = module.lower()
    for family, words in _FAMILIES:
        if any(word in lower for word in words):
            return family
    return "other"


def spread_over(values: list[int], most: int) -> list[int]:
    """Return at most so many values, evenly taken, the first and last among them."""
    if len(values) <= most:
        return values
    step = (len(values) - 1) / (most - 1)
    return [values[round(number * step)] for number in range(most)]


def _lead(bundle: ReportedBundle, counts: list[int]) -> str:
    words = []
    for tokens in dict.fromkeys((counts[0], counts[-1])):
        parts = shares(bundle, tokens)
        whole = sum(parts.values())
        ordered = sorted(parts, key=lambda name: -parts[name])
        largest = ordered[: 2 if len(parts) > 3 else 1]
        share = percent_text(sum(parts[name] for name in largest) / whole)
        verb = "take" if len(largest) > 1 else "takes"
        words.append(
            f"at {tokens_text(tokens)} {joined(largest)} {verb} {share} of "
            f"{time_text(whole)}"
        )
    lead = "; ".join(words)
    return f"{lead[0].upper()}{lead[1:]}."


def _notes(bundle: ReportedBundle, shown: int, counts: int) -> list[str]:
    notes = [
        "Medians of the winners, each times its calls in a forward pass of the whole "
        "model; the GEMMs alone, without what is between them."
    ]
    if untimed := [one for one in bundle.lists if not one.us]:
        notes.append(
            f"Not in it: {counted(len(untimed), 'list')} without a time"
            f"{_why_untimed(untimed)}."
        )
    if shown < counts:
        notes.append(f"{shown} of {counts} token counts are drawn.")
    if bundle.manifest.model.get("architecture") == BY_HAND:
        notes.append("Its GEMMs were listed by hand: a pass here is what was listed.")
    if len(bundle.manifest.program.get("parts") or ()) > 1:
        notes.append("The bundle was merged: a pass here is all of its programs'.")
    return notes


def _why_untimed(untimed: list[ReportedList]) -> str:
    lone = sum(len(one.tuned.records) == 1 for one in untimed)
    if lone == len(untimed):
        return ", which offer one candidate" if lone > 1 else ", of one candidate"
    return f", {lone} of them with one candidate" if lone else ""
