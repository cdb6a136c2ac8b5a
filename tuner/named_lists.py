"""The candidate lists that a person means: by sizes, by module, or by a hash."""

import difflib
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence

from flytune.caches.lists import TunedList
from flytune.caches.manifest import Manifest
from flytune.caches.records import TuningRecord
from flytune.caches.several import parts_of
from flytune.shapes.errors import FlytuneError

# As a table prints them, "bmm 32x(16, 16, 128)", or in short, "16x4096x1024".
_SIZES = re.compile(
    r"(?:(?P<op>[a-z]\w*)\s+)?(?:(?P<batch>\d+)\s*x\s*)?"
    r"\(?\s*(?P<m>\d+)\s*[x,]\s*(?P<n>\d+)\s*[x,]\s*(?P<k>\d+)\s*\)?"
)
_AT = " at "
_SHORTEST_HASH = 6
_NEAR = 3


def is_shape(words: str) -> bool:
    """Whether words are sizes, as those of a GEMM are written."""
    return _SIZES.fullmatch(words.partition(_AT)[0].strip()) is not None


def modules_by_list(manifest: Manifest) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Return every module that asks for a list, by inputs' key and winner's hash.

    The records hold the first one alone.
    """
    return {
        (str(row.get("inputs_key")), str(row.get("choice_hash"))): tuple(
            map(str, row["modules"])
        )
        for row in manifest.winners
        if isinstance(row.get("modules"), list)
    }


def modules_of(
    tuned: TunedList, known: Mapping[tuple[str, str], tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the modules of a list; `known` is as `modules_by_list` returns it."""
    winner, own = tuned.winner, tuned.shape.module
    found = () if winner is None else known.get(_key(winner), ())
    return found or ((own,) if own else ())


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
    known = modules_by_list(manifest)
    sizes, at, pattern = words.strip().partition(_AT)
    if is_shape(sizes):
        found = [t for t in lists if _fits(sizes.strip(), str(t.shape))]
        if at:
            found = [t for t in found if _has_module(t, pattern.strip(), known)]
    else:
        found = [t for t in lists if _has_module(t, words.strip(), known)]
        found = found or [t for t in lists if _has_hash(t, words.strip())]
    if not found:
        raise FlytuneError(
            f"bundle has no list of: `{words}`", hint=_hint(lists, words, manifest)
        )
    return tuple(found)


def _key(record: TuningRecord) -> tuple[str, str]:
    return str(record.inputs_key), record.choice_hash


def _fits(words: str, name: str) -> bool:
    """Whether sizes that a person wrote are those of a GEMM's name."""
    asked, printed = _SIZES.fullmatch(words), _SIZES.fullmatch(name)
    if asked is None or printed is None:
        return False
    return all(
        text is None or text == printed[part]
        for part, text in asked.groupdict().items()
    )


def _has_module(
    tuned: TunedList, pattern: str, known: Mapping[tuple[str, str], tuple[str, ...]]
) -> bool:
    # Of layers that are the same a module is one pattern, "layers.*.q_proj", of which
    # a person may well name a layer.
    return any(
        fnmatch.fnmatchcase(module, pattern)
        or fnmatch.fnmatchcase(pattern, module)
        or module.endswith(f".{pattern}")
        for module in modules_of(tuned, known)
    )


def _has_hash(tuned: TunedList, word: str) -> bool:
    return len(word) >= _SHORTEST_HASH and any(
        record.choice_hash.startswith(word)
        or record.choice_hash.rpartition("-")[2].startswith(word)
        for record in tuned.records
    )


def _hint(lists: Sequence[TunedList], words: str, manifest: Manifest) -> str:
    """Say why the GEMM has no list, where the bundle tells, or what is near it."""
    if why := next(_unlisted(words, manifest), ""):
        return why
    names = list(dict.fromkeys(str(tuned.shape) for tuned in lists))
    near = difflib.get_close_matches(words, names, _NEAR, cutoff=0.5)
    shown = near or names[:_NEAR]
    more = len(names) - len(shown)
    if not shown:
        return "it holds no list at all"
    return f"it has {', '.join(shown)}" + (f" and {more} more" if more else "")


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
