"""What of an older bundle survives here, and what the rest takes, said beforehand."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flytune.caches.lists import TunedList
from flytune.caches.manifest import Manifest
from flytune.caches.parts import sizes
from flytune.caches.records import TuningRecord
from flytune.caches.target import PartResult
from flytune.caches.words import counted, form_of, seconds_text
from flytune.tuner.candidate import ATEN
from flytune.tuner.survival import Changes
from flytune.tuner.upgrade import front_of, is_decided


def survival_lines(
    manifest: Manifest, lists: Sequence[TunedList], changed: Changes
) -> Iterator[str]:
    """Yield a line for each part that changed, and for each part of an older bundle.

    Args:
        lists: Of its records.
    """
    for part in changed.parts:
        # Triton's key is 1700 digits.
        key = part.part.endswith("_key")
        yield f"{part.part}: that of another build" if key else str(part)
    if graphs := sizes(manifest.files).get("graphs", (0, 0))[0]:
        yield _line("graphs", graphs, "file", "made again", changed.graphs)
    numbers = Counter(record.backend for one in lists for record in one.records)
    compiled = sorted(numbers.keys() - {ATEN})
    for backend in compiled:
        touched = changed.kernels(backend)
        row = (f"{backend} kernels", numbers[backend], "candidate", "compiled again")
        yield _line(*row, touched)
    timed = Counter(record.backend == ATEN for one in lists for record in one.timed())
    if timed[True]:
        touched = (*changed.library, *changed.times)
        yield _line("library timings", timed[True], "time", "taken again", touched)
    if timed[False]:
        again = "taken again" if changed.times else "kept where the bytes are the same"
        touched = tuple(p for b in compiled for p in changed.kernels(b))
        row = ("template timings", timed[False], "time", again)
        yield _line(*row, (*touched, *changed.times))


def plan_lines(lists: Sequence[TunedList], changed: Changes) -> Iterator[str]:
    """Yield what is compiled and timed first, what perhaps later, and what each takes.

    Args:
        lists: Of the older bundle's records.
    """
    known = [one for one in lists if is_decided(one)]
    if not known:
        return
    cores = len(os.sched_getaffinity(0))
    first = sum(len(front_of(one)) for one in known)
    yield (
        f"first {counted(first, 'candidate')} of {counted(len(known), 'list')}, the "
        "winners, the runners-up and each backend's best: "
        f"{_cost(known, front_of, changed).words(cores)}"
    )
    if not (rest := sum(len(one.records) for one in known) - first):
        return
    whole = _cost(known, lambda one: one.records, changed)
    yield (
        f"then {rest} more, only where a front has moved; all at once would take "
        f"{whole.words(cores)}"
    )


@dataclass(frozen=True, slots=True)
class _Cost:
    """What compiling and timing take, by an older bundle's records."""

    compile_s: float
    """Of one core."""
    device_s: float | None
    """Of one device; None where the records do not tell."""

    def words(self, cores: int) -> str:
        """Return it for a person, where so many cores compile."""
        took = seconds_text(self.compile_s / cores)
        compiling = f"{took} of compiling on {counted(cores, 'core')}"
        if self.device_s is None:
            return f"{compiling}, and on the device what the records do not tell"
        return f"{compiling} and {seconds_text(self.device_s)} of the device"


def _cost(
    lists: Sequence[TunedList],
    meant: Callable[[TunedList], Sequence[TuningRecord]],
    changed: Changes,
) -> _Cost:
    """Return what the candidates that are meant of each list take.

    Of a list that nothing touches nothing is timed.
    """
    compile_s, device_s = 0.0, 0.0
    for one in lists:
        records = meant(one)
        compiled = [r for r in records if changed.kernels(r.backend)]
        compile_s += sum(record.compile_s or 0.0 for record in compiled)
        if compiled or changed.times or changed.library:
            timed = tuple(one.timed())
            batch_s = max(record.batch_s or 0.0 for record in timed)
            device_s += batch_s * sum(r in timed for r in records) / len(timed)
    told = any(r.batch_s is not None for one in lists for r in one.records)
    return _Cost(compile_s, device_s if told else None)


def _line(
    part: str, number: int, of: str, again: str, touched: Sequence[PartResult]
) -> str:
    because = ", ".join(dict.fromkeys(one.part for one in touched))
    what = f"{again}: {because}" if touched else "kept"
    return f"{part:<17}{number:>6} {form_of(number, of):<11}{what}"
