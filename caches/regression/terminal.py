"""The result on a terminal, in colour."""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from flytune.caches.regression.check import Check, Outcome
from flytune.caches.regression.finding import Standing
from flytune.caches.regression.table import (
    findings_lines,
    more_lists,
    summary,
    time_rows,
    verdict,
)

_STYLES = {
    Standing.FAILS: "bold red",
    Standing.UNDECIDED: "yellow",
    Standing.WAIVED: "cyan",
    Standing.NOTED: "dim",
}
_OUTCOMES = {
    Outcome.FINE: "bold green",
    Outcome.REGRESSION: "bold red",
    Outcome.UNDECIDED: "bold yellow",
}

_GAP = "  "


def show(check: Check) -> None:
    """Print it; what comes from a bundle is text, and never markup."""
    console = Console(highlight=False)
    for line in summary(check):
        console.print(Text(line))
    for standing, line in findings_lines(check):
        console.print(Text(line, _STYLES[standing]))
    if check.times.lists:
        console.print(table(time_rows(check), console.width))
    for line in more_lists(check):
        console.print(Text(line))
    console.print(Text(verdict(check), _OUTCOMES[check.outcome]))


def table(rows: Sequence[Sequence[str]], width: int) -> RenderableType:
    """Return the table of times, in which nothing is cut.

    Where a row is longer than a line, its name stands above its numbers.

    Args:
        rows: The head, then the rows, as `time_rows` returns them.
        width: Of the terminal, in columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        return Text("\n").join(_stacked(rows, widths[1:-1], width))
    head, *body = rows
    whole = Table(box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(head):
        numbers = 0 < at < len(head) - 1
        whole.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in body:
        whole.add_row(*map(Text, row))
    return whole


def _stacked(
    rows: Sequence[Sequence[str]], widths: Sequence[int], width: int
) -> Iterator[Text]:
    for at, (name, *numbers, winner) in enumerate(rows):
        style = "" if at else "bold"
        if name:
            yield Text(name, style)
        cells = (cell.rjust(size) for cell, size in zip(numbers, widths, strict=True))
        line = _GAP + _GAP.join(cells)
        if len(line) + len(_GAP) + len(winner) <= width:
            yield Text(f"{line}{_GAP}{winner}", style)
        else:
            yield Text(line, style)
            yield Text(f"{_GAP}{winner}", style)
