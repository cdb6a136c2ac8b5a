"""The result as JSON lines: a check, its findings, its lists and its forward passes."""

from collections.abc import Iterator
from typing import Any

from flytune.caches.columns import SHAPE_COLUMNS
from flytune.caches.records import TuningRecord
from flytune.caches.regression.check import Check
from flytune.caches.regression.finding import Finding, Standing
from flytune.caches.regression.kernels import kernel_name
from flytune.caches.regression.significance import FALSE_ALARMS
from flytune.caches.regression.times import Compared, numbers


def rows(check: Check) -> Iterator[dict[str, Any]]:
    """Yield one object a row; its `row` says what it is."""
    yield _whole(check)
    yield from map(finding_row, check.findings)
    yield from map(_pass, check.times.passes)
    yield from (_list(check, one) for one in check.times.lists)


def finding_row(finding: Finding) -> dict[str, Any]:
    """Return a finding as a JSON row."""
    return {
        "row": "finding",
        "kind": str(finding.kind),
        "standing": str(finding.standing),
        "subject": finding.subject,
        "text": finding.text,
        "hint": finding.hint or None,
        "waived": finding.reason or None,
        **{name: _json(value) for name, value in finding.values.items()},
    }


def _whole(check: Check) -> dict[str, Any]:
    spread = check.times.spread
    return {
        "row": "check",
        "outcome": check.outcome.name.lower(),
        "exit_code": int(check.outcome),
        **{
            name: {"bundle": str(side.bundle.path), "digest": side.bundle.digest}
            for name, side in (("new", check.sides.new), ("baseline", check.sides.old))
        },
        "lists": len(check.sides.pairs),
        "lost": len(check.sides.lost),
        "added": len(check.sides.added),
        "carried": check.carried,
        "untested": check.untested,
        "tests": check.times.tests,
        "correction": "holm",
        "false_alarms": FALSE_ALARMS,
        "spread": None if spread is None else spread.deviation,
        "spread_kernels": check.times.kernels,
        "retimed": _again(check),
        **{str(s): len(check.of(s)) for s in Standing},
    }


def _pass(one: Compared) -> dict[str, Any]:
    return {"row": "pass", "name": one.name, "lists": one.count, **_test(one)}


def _list(check: Check, one: Compared) -> dict[str, Any]:
    assert one.shift is not None, "a list has one"
    shape = one.shift.pair.new.shape.to_row()
    return {
        "row": "list",
        "name": one.name,
        **{column.name: shape[column.name] for column in SHAPE_COLUMNS},
        "old_winner": _winner(one.shift.old),
        "new_winner": _winner(one.shift.new),
        "processes": _processes(check, one),
        **_test(one),
    }


def _again(check: Check) -> dict[str, Any] | None:
    again = check.retimed
    if again is None:
        return None
    return {
        "device": again.device or None,
        "same_device": again.here,
        "lists": len(again.lists),
        "raced": again.raced,
        "one_kernel": again.same,
    }


def _processes(check: Check, one: Compared) -> int | None:
    """Return in how many processes a list was timed again; None where it was not."""
    assert one.shift is not None, "a list has one"
    raced = check.retimed and check.retimed.of(one.shift.pair)
    return len(raced.values) if raced else None


def _test(one: Compared) -> dict[str, Any]:
    return {
        **numbers(one),
        "slower": one.slower,
        "faster_p_value": one.faster_p,
    }


def _winner(record: TuningRecord) -> dict[str, Any]:
    return {
        "kernel": kernel_name(record),
        "backend": record.backend,
        "template": record.template,
        "config": record.config,
        "choice_hash": record.choice_hash,
        "kernel_digest": record.kernel_digest,
    }


def _json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
