"""The candidate lists that a person means: by sizes, by module, or by a hash."""

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence

from flytune.caches.lists import TunedList, calls_of
from flytune.caches.manifest import Manifest
from flytune.caches.several import parts_of
from flytune.caches.words import counted, plain
from flytune.shapes.errors import FlytuneError
from flytune.tuner.near_lists import near

# As a table prints them, "bmm 32x(16, 16, 128)", or in short, "16x4096x1024".
_SIZES = re.compile(
    r"(?:(?P<op>[a-z]\w*)\s+)?(?:(?P<batch>\d+)\s*x\s*)?"
    r"\(?\s*(?P<m>\d+)\s*[x,]\s*(?P<n>\d+)\s*[x,]\s*(?P<k>\d+)\s*\)?"
)
_AT = " at "
_SHORTEST_HASH = 6


def is_shape(words: str) -> bool:
    """Whether words are sizes, as those of a GEMM are written."""
    return _SIZES.fullmatch(words.partition(_AT)[0].strip()) is not None


def modules_of(tuned: TunedList, manifest: Manifest) -> tuple[str, ...]:
    """Return the modules that call a list, as far as they are known."""
    return tuple(filter(None, calls_of(tuned, manifest)))


def find_lists(
    lists: Sequence[TunedList], words: str, manifest: Manifest
) -> tuple[TunedList, ...]:
    """Return the lists that words name, in the bundle's order; at least one.

    Args:
        words: Sizes, as `is_shape` knows them, with " at " and a module or without; a
            module's path, its end, or a pattern; or the start of a choice hash.

    Raises:
        FlytuneError: there is none, and what there is.
    """
    words = words.strip()
    named = [(tuned, modules_of(tuned, manifest)) for tuned in lists]
    sizes, at, pattern = words.partition(_AT)
    if is_shape(sizes):
        found = [
            tuned
            for tuned, modules in named
            if _fits(sizes.strip(), str(tuned.shape))
            and (not at or _has_module(modules, pattern.strip()))
        ]
    else:
        found = [tuned for tuned, modules in named if _has_module(modules, words)]
        found = found or _of_hash(lists, words)
    if not found:
        every = [module for _, modules in named for module in modules]
        raise FlytuneError(
            f"bundle has no list of: `{words}`",
            hint=plain(_hint(lists, words, every, manifest)),
        )
    return tuple(found)


def _fits(words: str, name: str) -> bool:
    """Whether sizes that a person wrote are those of a GEMM's name."""
    asked, printed = _SIZES.fullmatch(words), _SIZES.fullmatch(name)
    if asked is None or printed is None:
        return False
    return all(
        text is None or text == printed[part]
        for part, text in asked.groupdict().items()
    )


def _has_module(modules: Sequence[str], pattern: str) -> bool:
    # Of layers that are the same a module is one pattern, "layers.*.q_proj", of which
    # a person may well name a layer.
    return any(
        fnmatch.fnmatchcase(module, pattern)
        or fnmatch.fnmatchcase(module, f"*.{pattern}")
        or fnmatch.fnmatchcase(pattern, module)
        or module.endswith(f".{pattern}")
        for module in modules
    )


def _of_hash(lists: Sequence[TunedList], word: str) -> list[TunedList]:
    if len(word) < _SHORTEST_HASH:
        return []
    return [tuned for tuned in lists if _has_hash(tuned, word)]


def _has_hash(tuned: TunedList, word: str) -> bool:
    return any(
        record.choice_hash.startswith(word)
        or record.choice_hash.rpartition("-")[2].startswith(word)
        for record in tuned.records
    )


def _hint(
    lists: Sequence[TunedList], words: str, modules: Sequence[str], manifest: Manifest
) -> str:
    """Say why the GEMM has no list, where the bundle tells, or what is near it."""
    if why := next(_unlisted(words, manifest), ""):
        return why
    if not lists:
        return "it holds no list at all"
    names = near(lists, words, modules)
    if not names and any(_has_hash(tuned, words) for tuned in lists):
        return (
            f"the start of a choice hash has {_SHORTEST_HASH} characters at least, "
            f"and `{words}` has {len(words)}"
        )
    shown = f"near it: {', '.join(names)}" if names else "it has nothing near"
    return f"{shown}; all {counted(len(lists), 'list')}: flytune explain B --list"


def _unlisted(words: str, manifest: Manifest) -> Iterator[str]:
    """Yield why a planned GEMM of these words was lowered without a list."""
    sizes = words.partition(_AT)[0].strip()
    for reason, name in _missing(manifest):
        if _fits(sizes, name.partition(_AT)[0]):
            yield f"planned, and lowered without a list: {name}: {reason}"


def _missing(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for part in parts_of(manifest):
        missing = part["coverage"].get("missing")
        for reason, names in missing.items() if isinstance(missing, Mapping) else ():
            yield from ((reason, str(name)) for name in names)
