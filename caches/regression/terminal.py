"""The result on a terminal, in colour."""

from rich.console import Console
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


def show(check: Check) -> None:
    """Print it; what comes from a bundle is text, and never markup."""
    console = Console(highlight=False)
    for line in summary(check):
        console.print(Text(line))
    for standing, line in findings_lines(check):
        console.print(Text(line, _STYLES[standing]))
    if check.times.lists:
        console.print(_table(time_rows(check)))
    for line in more_lists(check):
        console.print(Text(line))
    console.print(Text(verdict(check), _OUTCOMES[check.outcome]))


def _table(rows: list[tuple[str, ...]]) -> Table:
    head, *body = rows
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(head):
        numbers = 0 < at < len(head) - 1
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in body:
        table.add_row(*map(Text, row))
    return table
