"""What is near to the words of a person that no candidate list fits."""

import difflib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from flytune.caches.lists import TunedList
from flytune.shapes.gemm import GemmShape

_SHAPED = re.compile(r"(?P<op>[a-z]\w*)?(?P<sizes>[\d\s,x()]*)", re.IGNORECASE)
_DIGITS = 18
"""Of a size; Python reads no number of thousands of them."""
_SHOWN = 3
_FURTHEST = 4.0
"""Of sizes, the sum of the logarithms of their ratios, to the base of 2."""
_ALIKE = 0.6
"""Of modules, as difflib counts."""


def near(
    lists: Sequence[TunedList], words: str, modules: Iterable[str]
) -> tuple[str, ...]:
    """Return what a person may have meant, the nearest first; nothing if none is near.

    Args:
        lists: Those of the bundle.
        words: Sizes, with an op and " at " and a module or without; or a module.
        modules: All that ask for the lists.

    Returns:
        Names of GEMMs of that op and of like sizes, or paths of modules.
    """
    sizes, at, _ = words.strip().partition(" at ")
    shaped = _SHAPED.fullmatch(sizes.strip())
    op = "" if shaped is None else (shaped["op"] or "").lower()
    if shaped is None or (op and op not in {one.shape.op for one in lists}):
        found: Iterable[str] = _modules(words.strip(), modules)
    else:
        numbers = re.findall(r"\d+", shaped["sizes"])
        if any(len(number) > _DIGITS for number in numbers):
            return ()
        asked = [max(int(number), 1) for number in numbers]
        found = (one.name if at else str(one.shape) for one in _like(lists, op, asked))
    return tuple(itertools.islice(dict.fromkeys(found), _SHOWN))


def _like(
    lists: Sequence[TunedList], op: str, sizes: Sequence[int]
) -> Iterator[TunedList]:
    """Yield lists of like sizes, those of the op first."""
    ranked = []
    for one in lists:
        other = bool(op) and one.shape.op != op
        # Of an op alone no other is like it.
        if sizes or not other:
            ranked.append((other, _distance(one.shape, sizes), one))
    for _, distance, one in sorted(ranked, key=lambda row: row[:2]):
        if distance <= _FURTHEST:
            yield one


def _distance(shape: GemmShape, sizes: Sequence[int]) -> float:
    """Return how far sizes are from a GEMM's, of which a person may leave some out."""
    own: tuple[int, ...] = (shape.m, shape.n, shape.k)
    if len(sizes) > len(own):
        own = (shape.batch, *own)
    return min(
        (
            sum(abs(math.log2(a / max(b, 1))) for a, b in zip(sizes, some, strict=True))
            for some in itertools.combinations(own, len(sizes))
        ),
        default=math.inf,
    )


def _modules(word: str, modules: Iterable[str]) -> Iterator[str]:
    """Yield modules whose path, or the end of it, is like a word."""
    ends: dict[str, list[str]] = {}
    for module in dict.fromkeys(modules):
        parts = module.lower().split(".")
        for start in range(len(parts)):
            ends.setdefault(".".join(parts[start:]), []).append(module)
    for end in difflib.get_close_matches(word.lower(), ends, _SHOWN, cutoff=_ALIKE):
        yield from ends[end]
