"""The result for a terminal or a log: a summary, what was found, and the times."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from flytune.caches.regression.again import Retimed
from flytune.caches.regression.cause import us
from flytune.caches.regression.check import Check, Outcome
from flytune.caches.regression.finding import Finding, Kind, Standing
from flytune.caches.regression.kernels import is_alike
from flytune.caches.regression.significance import FALSE_ALARMS
from flytune.caches.regression.times import Compared, p_words
from flytune.caches.words import counted, plain

WORDS = {
    Standing.FAILS: "FAIL",
    Standing.UNDECIDED: "UNDECIDED",
    Standing.WAIVED: "waived",
    Standing.NOTED: "note",
}
ORDER = tuple(WORDS)
"""Of standings, the gravest first."""
# Kinds whose words are counted; the others are adjectives.
_NOUNS = {
    Kind.MODEL: ("other model", "other models"),
    Kind.BACKEND: ("backend", "backends"),
    Kind.MISSES: ("miss", "misses"),
    Kind.SLOWER_PASS: ("slower pass", "slower passes"),
}
_SHOWN_NOTES = 20
_SHOWN_LISTS = 20


def text(check: Check) -> str:
    """Return the whole result, plain."""
    lines = [*summary(check), *(line for _, line in findings_lines(check))]
    if check.times.lists:
        lines += ["", *_columns(time_rows(check)), *more_lists(check)]
    return "\n".join([*lines, "", verdict(check)])


def summary(check: Check) -> Iterator[str]:
    """Yield what was compared, and how."""
    for name, side in (("new", check.sides.new), ("baseline", check.sides.old)):
        bundle = side.bundle
        yield f"{name:<9} {bundle.path}@sha256:{bundle.digest}"
    pairs, lost, added = (
        len(some) for some in (check.sides.pairs, check.sides.lost, check.sides.added)
    )
    yield f"lists     {pairs} in both, {lost} lost, {added} new"
    for line in statistics(check):
        yield f"times     {line}"


def statistics(check: Check) -> Iterator[str]:
    """Yield how the times were tested."""
    times = check.times
    yield from _again(check.retimed)
    if not times.lists:
        if check.retimed is None or not check.retimed.lists:
            yield _untested(check)
        return
    carried = f"; {_carried(check)}, not tested" if check.carried else ""
    yield (
        f"{counted(len(times.lists), 'list')} and "
        f"{counted(len(times.passes), 'forward pass', 'forward passes')}: "
        f"{counted(times.tests, 'test')}, Holm-corrected: equally fast bundles fail by "
        f"chance in at most 1 comparison of {1 / FALSE_ALARMS:.0f}{carried}"
    )
    assert times.spread is not None, "tests have one"
    if all(one.shift and one.shift.race for one in times.lists):
        return
    told = f"told by {counted(times.kernels, 'kernel')} that both have"
    yield (
        f"one kernel differs by {times.spread.deviation:.2%} from build to build, "
        f"{told if times.kernels else 'as is assumed where both have none in common'}"
    )


def _untested(check: Check) -> str:
    """Say why no list is tested."""
    if check.sides.new.bundle.digest == check.sides.old.bundle.digest:
        return "none are tested: this is the very bundle that it is compared with"
    carried = f"; {_carried(check)}" if check.carried else ""
    if check.untested:
        lists = counted(check.untested, "list")
        return f"{lists} with two times that cannot be compared{carried}"
    if carried:
        return f"none are tested: {_carried(check)}"
    return "no list has two times"


def _carried(check: Check) -> str:
    return f"{counted(check.carried, 'list')} with the baseline's very rounds"


def _again(again: Retimed | None) -> Iterator[str]:
    """Say what was timed again, where something was."""
    if again is None:
        return
    if not again.lists:
        yield "the records leave nothing open: nothing was timed again"
        return
    lists = counted(again.same, "list")
    one = f"; {lists} with one kernel in both" if again.same else ""
    if again.unable:
        yield f"nothing could be timed again: {again.unable}{one}"
        return
    left = len(again.lists) - again.raced - again.same
    rest = f"; {left} could not be, for the reasons below" if left else ""
    if not again.raced:
        yield f"nothing was timed again{one}{rest}"
        return
    fewest, most = again.processes
    number = f"{most}" if fewest == most else f"{fewest} to {most}"
    yield (
        f"{counted(again.raced, 'list')} timed again, both winners in turn, in "
        f"{number} processes each, on {again.device}{one}{rest}"
    )


def verdict(check: Check) -> str:
    """Return the outcome in one line."""
    fails = check.of(Standing.FAILS)
    match check.outcome:
        case Outcome.REGRESSION:
            kinds = Counter(finding.kind for finding in fails)
            words = [counted(n, *_NOUNS.get(k, (k, k))) for k, n in kinds.items()]
            return f"check     REGRESSION: {', '.join(words)}"
        case Outcome.UNDECIDED:
            few = len(check.of(Standing.UNDECIDED))
            return f"check     UNDECIDED: {few} that {_undecided(check.retimed)}"
    waived = len(check.of(Standing.WAIVED))
    unsure = sum(finding.kind is Kind.UNSURE for finding in check.of(Standing.NOTED))
    besides = [
        f"{number} {word}"
        for number, word in ((waived, "waived"), (unsure, "unsure"))
        if number
    ]
    return "check     fine" + (f"; {', '.join(besides)}" if besides else "")


def _undecided(again: Retimed | None) -> str:
    if again is None:
        return "cannot be told from what is on record"
    if again.unable:
        return f"cannot be told: {again.unable}"
    return "timing again has not told either"


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with the gravest first."""
    return sorted(findings, key=lambda finding: ORDER.index(finding.standing))


def findings_lines(check: Check) -> Iterator[tuple[Standing, str]]:
    """Yield the findings with what to do, each line with its standing."""
    notes = 0
    for finding in ordered(check.findings):
        standing = finding.standing
        if standing is Standing.NOTED:
            notes += 1
            if notes > _SHOWN_NOTES:
                continue
        yield standing, f"{WORDS[standing]:<9} {finding.kind}: {finding.line}"
        if standing is Standing.WAIVED:
            yield standing, f"          waived: {finding.reason}"
        elif finding.hint and standing is not Standing.NOTED:
            yield standing, f"          do: {finding.hint}"
    if notes > _SHOWN_NOTES:
        more = counted(notes - _SHOWN_NOTES, "note")
        yield Standing.NOTED, f"note      and {more} more: --json has all"


def more_lists(check: Check) -> Iterator[str]:
    """Say how many lists the table leaves out."""
    if (more := len(check.times.lists) - _SHOWN_LISTS) > 0:
        yield f"and {counted(more, 'list')} more, which moved less: --json has all"


def time_rows(check: Check) -> list[tuple[str, ...]]:
    """Return the table of times: the sums, then the lists that moved most."""
    moved = sorted(check.times.lists, key=lambda one: -abs(_saved_us(one)))
    rows: list[tuple[str, ...]] = [
        ("", "old us", "new us", "change", "calls", "p", "winner")
    ]
    rows += map(_row, check.times.passes)
    rows += map(_row, moved[:_SHOWN_LISTS])
    return rows


def _saved_us(one: Compared) -> float:
    """Return what a list saves in a forward pass."""
    return (one.old_us - one.new_us) * one.count


def _row(one: Compared) -> tuple[str, ...]:
    calls = "" if one.shift is None else str(one.count)
    return (
        one.name,
        us(one.old_us),
        us(one.new_us),
        f"{one.ratio - 1:+.1%}",
        calls,
        _p(one),
        winner_words(one),
    )


def _p(one: Compared) -> str:
    """Return the p-value of the way that a time has gone; "" where none is asked."""
    tested = one.shift is None or not one.shift.certain
    asked = one.p_value if one.ratio > 1 and tested else one.faster_p
    return "" if asked is None else p_words(asked).removeprefix("p ")


def winner_words(one: Compared) -> str:
    """Return the winner of a list, or both where it is another."""
    if one.shift is None:
        return counted(one.count, "list")
    old, new = one.shift.old, one.shift.new
    names = [
        plain(" ".join(filter(None, (record.backend, record.template))))
        for record in (old, new)
    ]
    if names[0] == names[1]:
        return names[0] if is_alike(old, new) else f"{names[0]}, other config"
    return " -> ".join(names)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows with their columns aligned, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if 0 < at < len(row) - 1 else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
