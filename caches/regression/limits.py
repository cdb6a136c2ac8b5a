"""A file of thresholds by shape, and of findings that are waived until a date."""

import datetime
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from flytune.caches.regression.finding import (
    WAIVABLE,
    Finding,
    Kind,
    Standing,
    found,
)
from flytune.shapes.errors import FlytuneError

_LIMITS_BYTES = 2**20


class Threshold(NamedTuple):
    """Above both of which a list is slower."""

    max_regression: float = 0.03
    """A share."""
    floor_us: float = 0.2


@dataclass(frozen=True, slots=True)
class Limit:
    """Thresholds of the lists whose name a pattern matches; None leaves it as it is."""

    pattern: str
    max_regression: float | None
    floor_us: float | None


@dataclass(frozen=True, slots=True)
class Waiver:
    """A finding that is known and accepted until the end of a day, UTC."""

    pattern: str
    kind: Kind
    reason: str
    expires: datetime.date

    def fits(self, finding: Finding) -> bool:
        """Whether it is of this kind and of this subject."""
        return finding.kind is self.kind and fnmatchcase(finding.subject, self.pattern)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file of limits says."""

    limits: tuple[Limit, ...] = ()
    waivers: tuple[Waiver, ...] = ()

    def threshold(self, name: str, default: Threshold) -> Threshold:
        """Return the thresholds of a list: those of the first limit that matches."""
        for one in self.limits:
            if fnmatchcase(name, one.pattern):
                ratio, floor = one.max_regression, one.floor_us
                return Threshold(
                    default.max_regression if ratio is None else ratio,
                    default.floor_us if floor is None else floor,
                )
        return default

    def applied(
        self, findings: Iterable[Finding], names: Iterable[str], today: datetime.date
    ) -> tuple[Finding, ...]:
        """Waive what a waiver is for, and say which limits are to no purpose.

        Args:
            names: Of all lists that were compared.
        """
        findings, names = tuple(findings), tuple(names)
        valid = [waiver for waiver in self.waivers if waiver.expires >= today]
        result = [_waived(finding, valid) for finding in findings]
        for waiver in self.waivers:
            if waiver.expires < today:
                text = (
                    f"waiver of `{waiver.kind}` expired on {waiver.expires}, and does "
                    f"not apply: {waiver.reason}"
                )
                about = any(map(waiver.fits, findings))
                hint = "what it waived is back" if about else "remove it"
                result.append(found(Kind.LIMITS, waiver.pattern, text, hint))
            elif not any(map(waiver.fits, findings)):
                text = f"waiver of `{waiver.kind}` matches nothing: {waiver.reason}"
                result.append(found(Kind.LIMITS, waiver.pattern, text, "remove it"))
        for limit in self.limits:
            if not any(fnmatchcase(name, limit.pattern) for name in names):
                text = "limit matches no list"
                result.append(found(Kind.LIMITS, limit.pattern, text, "remove it"))
        return tuple(result)


def _waived(finding: Finding, waivers: Iterable[Waiver]) -> Finding:
    if finding.standing not in (Standing.FAILS, Standing.UNDECIDED):
        return finding
    for waiver in waivers:
        if waiver.fits(finding):
            reason = f"{waiver.reason} (until {waiver.expires})"
            return replace(finding, standing=Standing.WAIVED, reason=reason)
    return finding


def share(text: str) -> float:
    """Return the share that "3%" or "0.03" says.

    Raises:
        ValueError: it is neither, not a number from 0 up, or a bare one of 1 or more:
            who writes 3 means 3 %, and not 300.
    """
    percent = text.endswith("%")
    number = float(text.removesuffix("%")) / (100 if percent else 1)
    if not 0 <= number < (math.inf if percent else 1):
        raise ValueError(text)
    return number


def read_limits(path: Path) -> Limits:
    """Read a file of limits: TOML with tables `limit` and `waiver`.

    Raises:
        FlytuneError: it cannot be read, or a key is missing, unknown or malformed.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_LIMITS_BYTES + 1)
    except OSError as error:
        raise FlytuneError(f"cannot read limits: {path}: {error.strerror}") from error
    if len(text) > _LIMITS_BYTES:
        raise FlytuneError(f"limits are too large: {path}")
    try:
        rows = tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise FlytuneError(f"limits are not TOML: {path}: {error}") from error
    if unknown := sorted(rows.keys() - {"limit", "waiver"}):
        _refuse(path, unknown[0], "unknown", "known are `limit` and `waiver`")
    return Limits(
        tuple(_limit(table) for table in _tables(path, rows, "limit")),
        tuple(_waiver(table) for table in _tables(path, rows, "waiver")),
    )


class _Table:
    """One table of the file, whose keys are taken one by one."""

    def __init__(self, path: Path, name: str, row: Mapping[str, Any]) -> None:
        self.path, self._name, self._row = path, name, row

    def check(self, required: Iterable[str], optional: Iterable[str] = ()) -> None:
        """Refuse keys that are missing, and then those that are unknown."""
        required, optional = tuple(required), tuple(optional)
        for key in required:
            if key not in self._row:
                self.refuse(key, "missing")
        if unknown := sorted(self._row.keys() - {*required, *optional}):
            known = ", ".join(f"`{key}`" for key in (*required, *optional))
            self.refuse(unknown[0], "unknown", f"known are {known}")

    def get(self, key: str) -> Any:
        """Return a value; None where there is none."""
        return self._row.get(key)

    def words(self, key: str) -> str:
        """Return a text that is not empty."""
        value = self._row[key]
        if not isinstance(value, str) or not value.strip():
            self.refuse(key, "not a text")
        return str(value)

    def refuse(self, key: str, why: str, hint: str | None = None) -> NoReturn:
        """Name the key at fault.

        Raises:
            FlytuneError: always.
        """
        _refuse(self.path, f"{self._name}.{key}", why, hint)


def _refuse(path: Path, key: str, why: str, hint: str | None = None) -> NoReturn:
    raise FlytuneError(f"limits: key is {why}: `{key}` in {path}", hint=hint)


def _tables(path: Path, rows: Mapping[str, Any], name: str) -> list[_Table]:
    tables = rows.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        _refuse(path, name, "not a list of tables", f"write [[{name}]]")
    return [
        _Table(path, f"{name}[{number}]", table)
        for number, table in enumerate(tables, start=1)
    ]


def _limit(table: _Table) -> Limit:
    table.check(["pattern"], ["max_regression", "floor_us"])
    ratio, floor = table.get("max_regression"), table.get("floor_us")
    if ratio is None and floor is None:
        table.refuse("max_regression", "missing", "or `floor_us`, or both")
    return Limit(
        table.words("pattern"),
        None if ratio is None else _share(table, ratio),
        None if floor is None else _microseconds(table, floor),
    )


def _share(table: _Table, value: Any) -> float:
    # A bare number may mean either; a text says which.
    if not isinstance(value, str):
        table.refuse("max_regression", "not a text", 'write "3%"')
    try:
        return share(value)
    except ValueError:
        table.refuse("max_regression", "not a share", 'write "3%" or "0.03"')


def _microseconds(table: _Table, value: Any) -> float:
    number = type(value) in (int, float) and 0 <= value < math.inf
    if not number:
        table.refuse("floor_us", "not a number of microseconds")
    return float(value)


def _waiver(table: _Table) -> Waiver:
    table.check(["pattern", "kind", "reason", "expires"])
    kind, expires = table.words("kind"), table.get("expires")
    if kind not in WAIVABLE:
        known = ", ".join(WAIVABLE)
        table.refuse("kind", "not a kind that fails", f"these do: {known}")
    if type(expires) is not datetime.date:
        table.refuse("expires", "not a date", "write expires = 2027-01-31")
    pattern = table.words("pattern")
    return Waiver(pattern, Kind(kind), table.words("reason"), expires)
