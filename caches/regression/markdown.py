"""The result as Markdown, for a pull request: what got slower, by how much, and why."""

from collections.abc import Iterator, Sequence

from flytune.caches.regression.check import Check, Outcome
from flytune.caches.regression.finding import BUNDLE, Finding, Kind, Standing
from flytune.caches.regression.table import (
    WORDS,
    ordered,
    statistics,
    time_rows,
    verdict,
)

_TITLES = {
    Outcome.FINE: "no regression",
    Outcome.REGRESSION: "regression",
    Outcome.UNDECIDED: "undecided here",
}
_SLOWER = (Kind.SLOWER, Kind.SLOWER_PASS)
_MOST_ROWS = 50
# What Markdown and the HTML within it would take for their own.
_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]()#+!|~"} | {"<": "&lt;"})


def markdown(check: Check) -> str:
    """Return the summary."""
    lines = [f"## flytune check: {_TITLES[check.outcome]}", ""]
    new, old = check.sides.new.bundle, check.sides.old.bundle
    lines += [
        f"`{new.path.name}` (`{new.digest[:12]}`) against "
        f"`{old.path.name}` (`{old.digest[:12]}`): "
        f"{len(check.sides.pairs)} lists in both, {len(check.sides.lost)} lost, "
        f"{len(check.sides.added)} new.",
        "",
    ]
    lines += [*_slower(check), *_others(check), *_times(check)]
    lines += [_plain(f"{line}.") + "  " for line in statistics(check)]
    return "\n".join([*lines, "", _plain(verdict(check)), ""])


def _slower(check: Check) -> Iterator[str]:
    slower = [f for f in ordered(check.findings) if f.kind in _SLOWER]
    if not slower:
        return
    yield "### Slower"
    yield ""
    rows = [("what", "was", "is", "change", "why", "do")]
    for finding in slower[:_MOST_ROWS]:
        values = finding.values
        waived = f"waived: {finding.reason}" if finding.reason else ""
        rows.append(
            (
                finding.subject,
                f"{values['old_us']:,.2f} us",
                f"{values['new_us']:,.2f} us",
                f"{values['ratio'] - 1:+.1%}",
                str(values.get("cause", "see the lists")),
                waived or finding.hint,
            )
        )
    yield from _table(rows)
    yield ""
    if len(slower) > _MOST_ROWS:
        yield from (f"and {len(slower) - _MOST_ROWS} more", "")


def _others(check: Check) -> Iterator[str]:
    others = [f for f in ordered(check.findings) if f.kind not in _SLOWER]
    decide = [f for f in others if f.standing is not Standing.NOTED]
    notes = [f for f in others if f.standing is Standing.NOTED]
    if decide:
        yield from (
            "### Besides",
            "",
            *_table([_HEAD, *map(_row, decide[:_MOST_ROWS])]),
        )
        yield ""
    if notes:
        yield f"<details><summary>Notes: {len(notes)}</summary>"
        yield from ("", *_table([_HEAD, *map(_row, notes[:_MOST_ROWS])]))
        if len(notes) > _MOST_ROWS:
            yield from ("", f"and {len(notes) - _MOST_ROWS} more")
        yield from ("", "</details>", "")


_HEAD = ("", "kind", "what", "do")


def _row(finding: Finding) -> tuple[str, ...]:
    about = "" if finding.subject == BUNDLE else f"{finding.subject}: "
    what = f"{about}{finding.text}"
    do = f"waived: {finding.reason}" if finding.reason else finding.hint
    return (WORDS[finding.standing], str(finding.kind), what, do)


def _times(check: Check) -> Iterator[str]:
    if not check.times.lists:
        return
    yield "<details><summary>Times</summary>"
    yield from ("", *_table(time_rows(check)), "", "</details>", "")


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(map(_plain, row))} |"
        if number == 0:
            yield f"|{' --- |' * len(row)}"


def _plain(text: str) -> str:
    return " ".join(text.split()).translate(_SPECIAL)
