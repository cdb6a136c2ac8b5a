"""The columns of the tuning records: names, kinds, and what a value may be."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from flytune.shapes.errors import FlytuneError


class Status(StrEnum):
    """How a candidate ended; a closed set."""

    OK = "ok"
    OVER_RESOURCES = "over_resources"
    COMPILE_ERROR = "compile_error"
    FAULT = "fault"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_RESULT = "wrong_result"
    UNSTABLE = "unstable"
    UNSUPPORTED = "unsupported"


BUDGET = "budget"
"""The value of `pruned_by` of what a build's budget left no time to try."""

_STATUSES = frozenset(Status)
Kind = Literal["str", "int", "float", "bool", "status", "floats", "ints", "int_rows"]


class Column(NamedTuple):
    """One column of the records; a nullable one holds None where unknown."""

    name: str
    kind: Kind
    nullable: bool = False


SHAPE_COLUMNS = (
    Column("op", "str"),
    Column("m", "int"),
    Column("n", "int"),
    Column("k", "int"),
    Column("batch", "int"),
    Column("groups", "int"),
    Column("a_dtype", "str"),
    Column("b_dtype", "str"),
    Column("out_dtype", "str"),
    Column("layout", "str"),
    Column("scaling", "str", nullable=True),
    Column("bias", "bool"),
    Column("module", "str"),
    Column("count", "int"),
    Column("tp", "int"),
    Column("ep", "int"),
    Column("engine", "str"),
    Column("reach", "str", nullable=True),
)
SINCE: Mapping[int, Mapping[str, Any]] = {
    2: {"ep": 1, "reach": None},
    3: {"canary_us": None, "batch_s": None, "at_s": None},
}
"""The columns that a schema added, and what rows of older ones hold there."""
COLUMNS = (
    *SHAPE_COLUMNS,
    Column("backend", "str"),
    Column("template", "str", nullable=True),
    Column("config", "str"),
    Column("choice_hash", "str"),
    Column("status", "status"),
    Column("reason", "str", nullable=True),
    Column("median_us", "float", nullable=True),
    Column("mad_us", "float", nullable=True),
    Column("rounds", "int", nullable=True),
    Column("samples_us", "floats"),
    Column("rel_error", "float", nullable=True),
    Column("compile_s", "float", nullable=True),
    Column("strides", "int_rows"),
    Column("offsets", "ints"),
    Column("device_uuid", "str", nullable=True),
    Column("method", "str", nullable=True),
    Column("clock_mhz", "float", nullable=True),
    Column("source", "str", nullable=True),
    Column("kernel_digest", "str", nullable=True),
    Column("predicted_us", "float", nullable=True),
    Column("pruned_by", "str", nullable=True),
    Column("winner", "bool"),
    Column("baked", "bool"),
    Column("inductor_op", "str", nullable=True),
    Column("inputs_key", "str", nullable=True),
    Column("precision", "str", nullable=True),
    Column("canary_us", "float", nullable=True),
    Column("batch_s", "float", nullable=True),
    Column("at_s", "float", nullable=True),
)


def check_value(column: Column, value: Any) -> None:
    """Check one value of a record.

    Raises:
        FlytuneError: the value is not of the column's kind.
    """
    if value is None and column.nullable:
        return
    if not _has_kind(column.kind, value):
        raise FlytuneError(
            f"record field `{column.name}` is not {column.kind}: {value!r}"
        )


def _has_kind(kind: Kind, value: Any) -> bool:
    match kind:
        case "str":
            return type(value) is str
        case "status":
            return isinstance(value, Status)
        case "int":
            return type(value) is int and -(2**63) <= value < 2**63
        case "bool":
            return type(value) is bool
        case "float":
            # Every float column is a time, an error or a clock.
            return type(value) in (int, float) and 0 <= value < math.inf
        case "floats":
            return _all_of("float", value)
        case "ints":
            return _all_of("int", value)
        case "int_rows":
            return _all_of("ints", value)


def _all_of(kind: Kind, value: Any) -> bool:
    return type(value) is tuple and all(_has_kind(kind, item) for item in value)


def from_json(column: Column, value: Any) -> Any:
    """Return a JSON row's value as a record holds it, with tuples for lists.

    Raises:
        FlytuneError: the status is not one of the closed set.
    """
    if column.kind == "status":
        if not isinstance(value, str) or value not in _STATUSES:
            raise FlytuneError(f"record status unknown: {value!r}")
        return Status(value)
    return _tuples(value)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def to_json(value: Any) -> Any:
    """Return a record's value as a JSON row holds it."""
    if type(value) is tuple:
        # Many numbers, or rows of them.
        nested = bool(value) and type(value[0]) is tuple
        return [list(row) for row in value] if nested else list(value)
    return str(value) if type(value) is Status else value
