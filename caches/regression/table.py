"""The result for a terminal or a log: a summary, what was found, and the times."""

from collections.abc import Iterable, Iterator, Sequence

from flytune.caches.regression.again import Retimed
from flytune.caches.regression.cause import us
from flytune.caches.regression.check import Check, Outcome
from flytune.caches.regression.finding import Finding, Standing, plain
from flytune.caches.regression.kernels import is_alike
from flytune.caches.regression.significance import FALSE_ALARMS
from flytune.caches.regression.times import Compared, p_words

WORDS = {
    Standing.FAILS: "FAIL",
    Standing.UNDECIDED: "UNDECIDED",
    Standing.WAIVED: "waived",
    Standing.NOTED: "note",
}
ORDER = tuple(WORDS)
"""Of standings, the gravest first."""
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
    carried = f"; {check.carried} carried over, not tested" if check.carried else ""
    if not times.lists and check.retimed is not None and check.retimed.lists:
        return
    if not times.lists:
        untested = f"{check.untested} lists have two times that cannot be compared"
        yield (untested if check.untested else "no list has two times") + carried
        return
    yield (
        f"{len(times.lists)} lists and {len(times.passes)} forward passes: "
        f"{times.tests} tests, Holm-corrected, of one thing against itself at most one "
        f"comparison in {1 / FALSE_ALARMS:.0f} alarms{carried}"
    )
    assert times.spread is not None, "tests have one"
    if all(one.shift and one.shift.race for one in times.lists):
        return
    yield (
        f"one kernel differs by {times.spread.deviation:.2%} from tune to tune, by "
        f"{times.kernels} that are the same in both"
    )


def _again(again: Retimed | None) -> Iterator[str]:
    """Say what was timed again, where something was."""
    if again is None:
        return
    if not again.lists:
        yield "the records leave nothing open: nothing was timed again"
        return
    fewest, most = again.processes
    left = len(again.lists) - again.raced - again.same
    number = f"{most}" if fewest == most else f"{fewest} to {most}"
    processes = f", in {number} processes each" if again.raced else ""
    one = f"; {again.same} have one kernel in both" if again.same else ""
    rest = f"; {left} cannot be" if left else ""
    yield (
        f"{again.raced} lists timed again, both winners in turn{processes}, on "
        f"{again.device}{one}{rest}"
    )


def verdict(check: Check) -> str:
    """Return the outcome in one line."""
    fails = check.of(Standing.FAILS)
    match check.outcome:
        case Outcome.REGRESSION:
            kinds = [str(finding.kind) for finding in fails]
            counted = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
            return f"check     REGRESSION: {', '.join(counted)}"
        case Outcome.UNDECIDED:
            few = len(check.of(Standing.UNDECIDED))
            return (
                f"check     UNDECIDED: {few} that cannot be told from what is on record"
            )
    waived = len(check.of(Standing.WAIVED))
    return "check     fine" + (f", {waived} waived" if waived else "")


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
        more = notes - _SHOWN_NOTES
        yield Standing.NOTED, f"note      and {more} notes more: --json has all"


def more_lists(check: Check) -> Iterator[str]:
    """Say how many lists the table leaves out."""
    if (more := len(check.times.lists) - _SHOWN_LISTS) > 0:
        yield f"and {more} lists more, which moved less: --json has all"


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
        p_words(one.p_value).removeprefix("p "),
        winner_words(one),
    )


def winner_words(one: Compared) -> str:
    """Return the winner of a list, or both where it is another."""
    if one.shift is None:
        return f"{one.count} lists"
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
