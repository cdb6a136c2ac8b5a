"""Numbers as a person reads them, with their units, and text that a line can hold."""

import math
from collections.abc import Iterable

NONE = "–"
"""What stands in the place of a value that is not known."""


def time_text(us: float | None) -> str:
    """Return a time given in microseconds, in the unit that fits it."""
    if us is None:
        return NONE
    if us < 1e3:
        return f"{_three(us)} µs"
    if us < 1e6:
        return f"{_three(us / 1e3)} ms"
    return seconds_text(us / 1e6)


def seconds_text(seconds: float | None) -> str:
    """Return a time given in seconds, in the unit that fits it."""
    if seconds is None:
        return NONE
    if seconds == 0:
        return "0 s"
    if seconds < 1e-3:
        return f"{_three(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{_three(seconds * 1e3)} ms"
    if seconds < 60:
        return f"{_three(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def ratio_text(ratio: float | None) -> str:
    """Return how many times as fast something is, such as "1.32×"."""
    if ratio is None:
        return NONE
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.0f}×"


def percent_text(share: float | None) -> str:
    """Return a share of 1 in percent, small ones with more digits."""
    if share is None:
        return NONE
    percent = 100 * share
    if percent == 0 or abs(percent) >= 9.95:
        return f"{percent:.0f} %"
    digits = 1 if abs(percent) >= 0.095 else 2
    return f"{percent:.{digits}f} %"


def rate_text(tera: float, unit: str) -> str:
    """Return a rate given in 10^12 of a unit, such as "B/s", a small one in 10^9."""
    if tera < 1:
        return f"{_three(1e3 * tera)} G{unit}"
    return f"{_three(tera)} T{unit}"


def number_text(value: float | None) -> str:
    """Return a number with three digits that count, and no unit."""
    return NONE if value is None else _three(value)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number and what it counts, such as "1 list" or "1,024 lists"."""
    return f"{number:,} {form_of(number, noun, plural)}"


def form_of(number: int, noun: str, plural: str = "") -> str:
    """Return the form of a noun, or of its verb, that follows a number."""
    return noun if number == 1 else plural or f"{noun}s"


def tokens_text(tokens: int) -> str:
    """Return a token count in words; the number is as `--tokens` takes it."""
    return f"{tokens} {form_of(tokens, 'token')}"


def joined(words: Iterable[str]) -> str:
    """Return words as English joins them: "a, b and c"."""
    *most, last = list(words) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def plain(text: str) -> str:
    """Return a text of one line: a bundle may hold what ends one or colours it."""
    return "".join(c if c.isprintable() else "?" for c in text)


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean of positive numbers; None of none."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def _three(value: float) -> str:
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= 3:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - size)}f}"
