"""What a build's budget left no time for, as its bundle says it."""

from collections.abc import Mapping
from typing import Any

from flytune.caches.words import counted, form_of, percent_text


def unreached_text(row: Mapping[str, Any]) -> str:
    """Say what a budget left no time for; nothing where it was enough.

    Args:
        row: The `budget` of a manifest's provenance, which no rule of the format
            checks.
    """
    untimed, cut, lists = (_number(row.get(n)) for n in ("unreached", "cut", "lists"))
    words = []
    if untimed:
        words.append(
            f"{untimed} of {counted(lists, 'list')} {form_of(untimed, 'was', 'were')} "
            "not reached and left to the library"
        )
    if cut:
        words.append(f"the search of {counted(cut, 'list')} was cut short")
    if not words:
        return ""
    share = row.get("share")
    known = isinstance(share, int | float)
    of_pass = f": {percent_text(share)} of the GEMMs' estimated time" if known else ""
    return f"{row.get('asked')} is too little: {'; '.join(words)}{of_pass}"


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
