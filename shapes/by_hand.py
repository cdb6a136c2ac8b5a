"""Reads GEMMs that a user lists by hand, for a model whose family is not known."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from flytune.shapes.errors import FlytuneError
from flytune.shapes.fields import DTYPES, MAX_SIZE
from flytune.shapes.gemm import FP4, FP8, LAYOUTS, Engine, GemmShape, Op, Platform
from flytune.shapes.quant_schemes import INT_TYPES, SCALINGS
from flytune.shapes.reach import reach_of
from flytune.shapes.reach_ways import CUSTOM_OP, PLACES

BY_HAND = "by hand"
"""The architecture of a list that no model's config stands behind."""
MAX_FILE_BYTES = 16 * 2**20
TYPES = (*DTYPES, FP8, "float8_e5m2", "float8_e4m3fnuz", FP4)
_CLOSED: Mapping[str, tuple[str, ...]] = {
    "op": get_args(Op),
    "engine": get_args(Engine),
    "layout": LAYOUTS,
    "scaling": SCALINGS,
    **dict.fromkeys(("a_dtype", "out_dtype"), TYPES),
    "b_dtype": (*TYPES, *INT_TYPES),
}
_COLUMNS = {field.name for field in fields(GemmShape)}


@dataclass(frozen=True, slots=True)
class HandList:
    """The GEMMs of a file, and what stands for a model's config."""

    name: str
    source: str
    shapes: tuple[GemmShape, ...]
    raw: str
    """The file's text."""
    architecture: str = BY_HAND


def read_by_hand(
    path: Path,
    tokens: tuple[int, ...],
    platform: Platform = "cuda",
    engine: Engine = "transformers",
    *,
    anew: bool = False,
) -> HandList:
    """Read GEMMs from a CSV file with a header, or from JSON lines.

    The names are those of `flytune shapes --json`, whose output it takes as it is; `n`
    and `k` must be there. Without `m` a row stands for each of `tokens`, without
    `engine` it is of the one that is named, and without `reach` it is reached as a
    model's would be on `platform`.

    Args:
        anew: Whether what a row says of its reach, on the platform that it was listed
            for, is passed over.

    Raises:
        FlytuneError: the file cannot be read or holds no row, or a row has an unknown
            column or a value that cannot be; the message names file and line.
    """
    try:
        if not path.is_file():
            fault = "not a plain file" if path.exists() else "no such file of shapes"
            raise FlytuneError(f"{fault}: `{path}`")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise FlytuneError(f"too large for a file of shapes: `{path}`")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or error
        raise FlytuneError(f"cannot read the shapes, {reason}: `{path}`") from error
    except UnicodeDecodeError as error:
        raise FlytuneError(f"shapes are not UTF-8 text: `{path}`") from error
    if text.lstrip().startswith("["):
        hint = "write one object a line"
        raise FlytuneError(f"shapes are a JSON array: `{path}`", hint=hint)
    is_json = text.lstrip().startswith("{")
    found: list[GemmShape] = []
    for line, row in _json_rows(text, path) if is_json else _csv_rows(text, path):
        one = _Row({k: v for k, v in row.items() if v not in (None, "")}, path, line)
        counts = tokens if "m" not in one.values else (one.size("m", 1),)
        found.extend(one.shape(m, platform, engine, anew) for m in counts)
    if not found:
        raise FlytuneError(f"no shapes in: `{path}`", hint="columns: n, k, m, op, ...")
    return HandList(path.stem, str(path), tuple(found), text)


def _json_rows(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, each in enumerate(text.splitlines(), 1):
        if not each.strip():
            continue
        try:
            row = json.loads(each, object_pairs_hook=_once)
        except KeyError as error:
            fault = f"`{error.args[0]}` is there twice in line {line}"
            raise FlytuneError(f"{fault}: `{path}`") from error
        except (ValueError, RecursionError) as error:
            raise FlytuneError(f"line {line} is not JSON: `{path}`") from error
        if not isinstance(row, dict):
            raise FlytuneError(f"line {line} is not a JSON object: `{path}`")
        yield line, row


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose names are all different.

    Raises:
        KeyError: one is there twice.
    """
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise KeyError(twice[0])
    return dict(pairs)


def _csv_rows(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True)
    try:
        columns = list(map(str.strip, reader.fieldnames or ()))
        for column in columns:
            if column and columns.count(column) > 1:
                fault = f"`{column}` is there twice in line 1"
                raise FlytuneError(f"{fault}: `{path}`")
            # A spreadsheet's empty column at the end is named nothing.
            if column and column not in _COLUMNS:
                fault = "is not a column of shapes in line 1"
                raise FlytuneError(f"`{column}` {fault}: `{path}`")
        for row in reader:
            if None in row or None in row.values():
                fault = f"line {reader.line_num} has not the header's columns"
                raise FlytuneError(f"{fault}: `{path}`")
            yield (
                reader.line_num,
                {key.strip(): value.strip() for key, value in row.items()},
            )
    except csv.Error as error:
        fault = f"line {reader.line_num} is not CSV, {error}"
        raise FlytuneError(f"{fault}: `{path}`") from error


@dataclass(frozen=True, slots=True)
class _Row:
    values: dict[str, Any]
    path: Path
    line: int

    def error(self, column: str, fault: str) -> FlytuneError:
        value = str(self.values.get(column))[:40]
        where = f"line {self.line} of `{self.path}`"
        return FlytuneError(f"{column} {fault} in {where}: `{value}`")

    def shape(
        self, m: int, platform: Platform, engine: Engine, anew: bool
    ) -> GemmShape:
        for column in self.values:
            if column not in _COLUMNS:
                raise self.error(column, "is not a column of shapes")
        op: Op = self.word("op", "mm")
        bias = self.flag("bias", op == "addmm")
        shape = GemmShape(
            op=op,
            m=m,
            n=self.size("n"),
            k=self.size("k"),
            batch=self.size("batch", 1),
            groups=self.size("groups", 0),
            a_dtype=self.word("a_dtype", "bfloat16"),
            b_dtype=self.word("b_dtype", self.word("a_dtype", "bfloat16")),
            out_dtype=self.word("out_dtype", "bfloat16"),
            layout=self.word("layout", "TN"),
            scaling=self.word("scaling", None),
            bias=bias,
            module=str(self.values.get("module", f"line {self.line}")),
            count=self.size("count", 1),
            tp=self.size("tp", 1),
            ep=self.size("ep", 1),
            engine=self.word("engine", engine),
            rule=str(self.values.get("rule", "by hand")),
        )
        self._check(shape)
        said = self.reach()
        reach = reach_of(shape, platform) if anew or not said else said
        return replace(shape, reach=reach)

    def _check(self, shape: GemmShape) -> None:
        if (shape.op == "grouped_mm") != (shape.groups > 0):
            raise self.error("groups", f"does not go with {shape.op}")
        if shape.batch > 1 and shape.op != "bmm":
            raise self.error("batch", f"does not go with {shape.op}")
        scaled = shape.scaling is not None
        if (shape.op == "scaled_mm" and not scaled) or (
            shape.op in ("mm", "addmm") and scaled
        ):
            raise self.error("scaling", f"does not go with {shape.op}")
        if shape.bias != (shape.op == "addmm") and shape.op != "scaled_mm":
            raise self.error("bias", f"does not go with {shape.op}")

    def size(self, column: str, default: int | None = None) -> int:
        value = self.values.get(column, default)
        if value is None:
            raise self.error(column, "is missing")
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value) if len(value) <= len(str(MAX_SIZE)) else MAX_SIZE + 1
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(column, "is not a whole number")
        least = 0 if column == "groups" else 1
        if not least <= value <= MAX_SIZE:
            raise self.error(column, f"is not from {least} to {MAX_SIZE}")
        return value

    def flag(self, column: str, default: bool) -> bool:
        value = str(self.values.get(column, default)).lower()
        if value not in ("true", "false"):
            raise self.error(column, "is not true or false")
        return value == "true"

    def reach(self) -> str:
        value = str(self.values.get("reach", ""))
        known, name = (*PLACES, f"{CUSTOM_OP}NAME"), value.removeprefix(CUSTOM_OP)
        if value not in ("", *PLACES) and name in ("", value):
            raise self.error("reach", f"is not one of {', '.join(known)}")
        return value

    def word(self, column: str, default: Any) -> Any:
        value = self.values.get(column, default)
        if value is not default and value not in _CLOSED[column]:
            raise self.error(column, f"is not one of {', '.join(_CLOSED[column])}")
        return value
