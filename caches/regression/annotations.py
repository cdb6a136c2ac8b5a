"""The result as annotations of a GitHub workflow's run.

An error is what the exit code comes of. So what is undecided is one where nothing
fails, and a warning beside what does.

Source: "Workflow commands for GitHub Actions" in GitHub's documentation; a step shows
ten annotations of each level.
"""

from collections import Counter
from collections.abc import Iterator

from flytune.caches.regression.check import Check, Outcome
from flytune.caches.regression.finding import BUNDLE, Finding, Kind, Standing
from flytune.caches.regression.table import ordered

_SHOWN = 10
_LEVELS = {Standing.FAILS: "error", Standing.WAIVED: "notice"}


def annotations(check: Check, *, undecided_passes: bool = False) -> Iterator[str]:
    """Yield workflow commands, the gravest first; notes are none, but for limits.

    Args:
        undecided_passes: Whether the run passes where nothing is decided.
    """
    decides = check.outcome is Outcome.UNDECIDED and not undecided_passes
    shown: Counter[str] = Counter()
    for finding in ordered(check.findings):
        level = _level(finding, "error" if decides else "warning")
        if level is None:
            continue
        shown[level] += 1
        if shown[level] < _SHOWN:
            yield _command(level, finding)
    for level, count in shown.items():
        if (more := count - _SHOWN + 1) > 0:
            yield f"::{level} title=flytune check::and {more} more: see the summary"


def _level(finding: Finding, undecided: str) -> str | None:
    if finding.kind is Kind.LIMITS:
        return "warning"
    if finding.standing is Standing.UNDECIDED:
        return undecided
    return _LEVELS.get(finding.standing)


def _command(level: str, finding: Finding) -> str:
    subject = "" if finding.subject == BUNDLE else f": {finding.subject}"
    title = _property(f"flytune check: {finding.kind}{subject}")
    waived = f"; waived: {finding.reason}" if finding.reason else ""
    do = f"; {finding.hint}" if finding.hint and not waived else ""
    return f"::{level} title={title}::{_data(f'{finding.text}{waived}{do}')}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
