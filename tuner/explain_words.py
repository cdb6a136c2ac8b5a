"""What is said of a candidate list to a person: in sentences and one table."""

import json
from collections.abc import Iterable, Iterator, Sequence

from flytune.caches.columns import BUDGET
from flytune.caches.lists import TunedList
from flytune.caches.records import Status, TuningRecord
from flytune.caches.ties import TIE_BAND
from flytune.caches.words import counted, plain
from flytune.tuner.explain_shape import Backend, Explanation, StoredTimes, Why
from flytune.tuner.smart.list_search import LEADERS, MODEL
from flytune.tuner.upgrade import OLDER

_WIDTH = 13
_NO_TIME = "-"


def lines(one: Explanation) -> Iterator[str]:
    """Yield the lines that explain one list."""
    yield plain(one.tuned.name)
    for name, text in (*_facts(one), *_lookup(one)):
        yield f"{name:<{_WIDTH}}{plain(text)}"
    yield ""
    yield from _table(one)


def listing(lists: Iterable[TunedList]) -> Iterator[str]:
    """Yield a line a list: what a person can name it by, its winner and its time."""
    rows = [("list", "winner", "us", "of")]
    for tuned in lists:
        winner = tuned.winner
        name = _NO_TIME if winner is None else _kernel(winner)
        us = None if winner is None else winner.median_us
        rows.append((tuned.name, name, _us(us), str(len(tuned.records))))
    yield from _columns(rows)


def _facts(one: Explanation) -> Iterator[tuple[str, str]]:
    shape = one.tuned.shape
    scaling = f", {shape.scaling}" if shape.scaling else ""
    types = f"{shape.a_dtype} x {shape.b_dtype} -> {shape.out_dtype}{scaling}"
    yield "computes", f"{types}, layout {shape.layout}"
    calls = f"{counted(one.count, 'call')} in a forward pass"
    yield "asked by", f"{', '.join(one.modules) or 'no module that is known'}; {calls}"
    yield "won", _won(one)
    if one.why is Why.UNDECIDED:
        yield from (("compiled", _statuses(backend)) for backend in one.backends)
    else:
        yield from (("others", _other(backend)) for backend in one.backends)
    if text := _baked(one.tuned):
        yield "baked", text


def _won(one: Explanation) -> str:
    winner = one.tuned.winner
    if winner is None:
        return "nobody: the candidates were compiled, and none was timed"
    return f"{_kernel(winner)}{_parameters(winner)}: {_why(one, winner)}"


def _why(one: Explanation, winner: TuningRecord) -> str:
    many = len(one.tuned.records)
    match one.why:
        case Why.ONLY:
            return "the only candidate, so that there was nothing to time"
        case Why.UNTIMED:
            reason = winner.reason or "nothing says why"
            return (
                f"none was timed ({reason}), and it is first in the fixed order: "
                "the library's, then by backend, template and configuration"
            )
        case Why.SURVIVED:
            return f"{_us(winner.median_us)} us, alone of {many} with a time"
        case Why.TIED:
            return f"{_us(winner.median_us)} us, {_tie(one)}"
        case Why.FASTEST:
            second = one.times[1]
            return (
                f"{_us(winner.median_us)} us, the fastest of {len(one.times)} by "
                f"median{_whose(one)}; the next, {_kernel(second)}, takes "
                f"{one.over(second) or 0:.1%} longer"
            )
        case _:
            first = one.times[0]
            return (
                f"{_us(winner.median_us)} us, and {_kernel(first)} has a shorter "
                f"median, {_us(first.median_us)} us: the stored times do not say why"
            )


def _tie(one: Explanation) -> str:
    others = len(one.tuned.tied) - 1
    text = (
        f"tied with {counted(others, 'other')}{_whose(one)}: none is surely "
        f"slower than the fastest by more than {TIE_BAND:.0%}"
    )
    if one.first_in_order:
        text += (
            "; of them it is first in the fixed order: the library's, then by backend, "
            "template and configuration"
        )
    fastest = one.times[0]
    if fastest != one.tuned.winner:
        text += (
            f"; {_kernel(fastest)} has the shortest median, {_us(fastest.median_us)} us"
        )
    return text


def _whose(one: Explanation) -> str:
    return ", in times that others recorded" if one.recorded else ""


def _statuses(backend: Backend) -> str:
    counts = ", ".join(f"{n} {status}" for status, n in backend.failed.items())
    return f"{backend.backend}: {counts}"


def _other(backend: Backend) -> str:
    if backend.best is None:
        return f"without a time, {_statuses(backend)}"
    cost = "" if backend.over is None else f", {_share(backend.over)}"
    rest = f"; without a time, {_statuses(backend)}" if backend.failed else ""
    return (
        f"{backend.backend}: {_us(backend.best.median_us)} us at best{cost}"
        f"{_parameters(backend.best)}{rest}"
    )


def _baked(tuned: TunedList) -> str:
    """Say what a graph holds of a list, where a bake took something of it."""
    taken = [record for record in tuned.records if record.baked]
    if not taken:
        return ""
    if any(record.winner for record in taken):
        return "a graph of the bundle holds the winner"
    names = ", ".join(_kernel(record) for record in taken)
    return f"a graph holds {names}: Inductor had the last word on what is fused to it"


def _lookup(one: Explanation) -> Iterator[tuple[str, str]]:
    first, winner = one.tuned.records[0], one.tuned.winner
    if not one.stored:
        yield "serving", _no_lookup(one)
    else:
        yield (
            "serving",
            "a graph that hits asks for none of this; one that is lowered anew looks "
            "up the time of each candidate, and takes the least",
        )
        for name, value in (
            ("op", first.inductor_op),
            ("inputs", first.inputs_key),
            ("precision", first.precision),
        ):
            yield f"  {name}", str(value)
        for stored in one.stored:
            yield "  file", _stored(one.tuned, stored)
    if winner is not None:
        yield "  choice", winner.choice_hash
        if winner.kernel_digest is not None:
            yield "  kernel", f"{winner.kernel_digest[:16]}: {_kernels(one)}"


def _no_lookup(one: Explanation) -> str:
    if one.why is Why.ONLY:
        return "Inductor looks up no time where there is one candidate"
    return "the bundle has no timings of this list"


def _stored(tuned: TunedList, stored: StoredTimes) -> str:
    own = [r.choice_hash for r in tuned.records]
    if absent := [name for name in own if name not in stored.ms]:
        return (
            f"{stored.path}: {len(absent)} of {len(own)} candidates have no time in "
            "it, so that Inductor would time them all"
        )
    least = min(own, key=lambda name: stored.ms[name])
    (record,) = (r for r in tuned.records if r.choice_hash == least)
    whose = "the winner's" if record.winner else f"that of {_kernel(record)}"
    return f"{stored.path}: the least of {len(own)} is {whose}"


def _kernels(one: Explanation) -> str:
    if one.kernels:
        return ", ".join(one.kernels)
    return "as it was timed; no file of the bundle is these very bytes"


def _table(one: Explanation) -> Iterator[str]:
    rows = [("", "us", "over", "spread", "rounds", "candidate", "")]
    for place, record in enumerate(one.tuned.ranked, 1):
        rows.append(
            (
                str(place),
                _us(record.median_us),
                "" if record.winner else _share(one.over(record)),
                _spread(record),
                str(record.rounds or ""),
                f"{_kernel(record)}{_differing(one.tuned, record)}",
                ", ".join(_notes(one.tuned, record)),
            )
        )
    yield from _columns(rows)


def _notes(tuned: TunedList, record: TuningRecord) -> Iterator[str]:
    if record.winner:
        yield "won"
    elif record in tuned.tied:
        yield "tied"
    if record.baked:
        yield "baked"
    if record.pruned_by == "race":
        yield "left the race, surely slower"
    elif record.pruned_by == OLDER:
        yield f"left out: {_us(record.predicted_us)} us in an older bundle"
    elif record.pruned_by == LEADERS:
        yield "did not race again: others of its wave were faster"
    elif record.pruned_by == BUDGET:
        expected = record.predicted_us
        yield "left out: the budget ended before it was tried" + (
            f"; {_us(expected)} us expected" if expected is not None else ""
        )
    elif record.pruned_by == MODEL and record.predicted_us is not None:
        yield f"left out: {_us(record.predicted_us)} us expected by the model of cost"
    elif record.pruned_by is not None:
        yield f"left out: {record.pruned_by}"
    if record.status is not Status.OK:
        yield f"{record.status}: {record.reason}"
    elif record.median_us is None and record.pruned_by is None:
        yield record.reason or "not timed"


def _differing(tuned: TunedList, record: TuningRecord) -> str:
    """Return the parameters in which a candidate differs from its template's others."""
    same = [
        _config(other)
        for other in tuned.records
        if (other.backend, other.template) == (record.backend, record.template)
    ]
    own = _config(record)
    names = (name for name in own if len({other.get(name) for other in same}) > 1)
    return "".join(f" {name}={own[name]}" for name in names)


def _parameters(record: TuningRecord) -> str:
    words = " ".join(f"{name}={value}" for name, value in _config(record).items())
    return f" ({words})" if words else ""


def _config(record: TuningRecord) -> dict[str, str]:
    try:
        row = json.loads(record.config)
    except ValueError:
        row = record.config
    if not isinstance(row, dict):
        return {"config": str(row)}
    return {str(name): str(value) for name, value in row.items()}


def _kernel(record: TuningRecord) -> str:
    return f"{record.backend} {record.template}" if record.template else record.backend


def _us(us: float | None) -> str:
    return _NO_TIME if us is None else f"{us:.1f}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"


def _spread(record: TuningRecord) -> str:
    """Return the median absolute deviation as a share of the median."""
    if not record.median_us or record.mad_us is None:
        return ""
    return f"{record.mad_us / record.median_us:.1%}"


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    shown = [tuple(map(plain, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
