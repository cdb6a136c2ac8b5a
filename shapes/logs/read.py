"""Reads the GEMMs of a log, whose form is known by what it holds."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flytune.shapes.by_hand import read_by_hand
from flytune.shapes.errors import FlytuneError
from flytune.shapes.logs import aiter, inductor, tunableop, vllm_moe
from flytune.shapes.logs.observed import ObservedGemm, ObservedGemms, Tally

MAX_LOG_BYTES = 512 * 2**20


class Format(NamedTuple):
    """A form of logs."""

    name: str
    holds: Callable[[str], bool]
    """Whether a text is of this form."""
    read: Callable[[str, Tally, Path], None]
    """Count the GEMMs of a text that was read from a path."""


def _holds_shapes(text: str) -> bool:
    first = text.lstrip().partition("\n")[0]
    try:
        row = json.loads(first) if first.startswith("{") else None
    except (ValueError, RecursionError):
        return False
    names = row if isinstance(row, dict) else map(str.strip, first.split(","))
    return {"n", "k"} <= set(names)


def _read_shapes(_text: str, tally: Tally, path: Path) -> None:
    for shape in read_by_hand(path, ()).shapes:
        tally.add(ObservedGemm.of_shape(shape), shape.count)


FORMATS = (
    Format("shapes", _holds_shapes, _read_shapes),
    Format("tunableop", tunableop.holds, lambda t, y, _: tunableop.read(t, y)),
    Format("aiter-csv", aiter.holds_table, lambda t, y, _: aiter.read_table(t, y)),
    Format("aiter-log", aiter.holds_log, lambda t, y, _: aiter.read_log(t, y)),
    Format("inductor", inductor.holds, lambda t, y, _: inductor.read(t, y)),
    Format("vllm-moe", vllm_moe.holds, vllm_moe.read),
)
"""What `flytune capture` and `flytune shapes` write; TunableOp's files; AITER's tables;
the lines of AITER's log; Inductor's blocks of autotuning; vLLM's fused experts."""


def read_log(path: Path, format: str | None = None) -> ObservedGemms:
    """Read the GEMMs that a log names, each with how often.

    A row that cannot be is set aside and counted, with the reason.

    Args:
        format: the name of one of `FORMATS`; by what the file holds where None.

    Raises:
        FlytuneError: the file cannot be read or is too large, it is of no known form
            or not of the one that is named, or it is of several.
    """
    text = _text_of(path)
    named = [one for one in FORMATS if format in (None, one.name)]
    if not named:
        raise FlytuneError(f"unknown format of logs: `{format}`", hint=_known())
    fit = [one for one in named if one.holds(text)]
    if not fit:
        form = "a known form" if format is None else f"the form {format}"
        raise FlytuneError(f"no GEMMs of {form} in log: `{path}`", hint=_known())
    if len(fit) > 1:
        names = " and ".join(one.name for one in fit)
        raise FlytuneError(
            f"a log of several forms, {names}: `{path}`",
            hint=f"choose one: --format {fit[0].name}",
        )
    tally = Tally()
    try:
        fit[0].read(text, tally, path)
    except csv.Error as error:
        raise FlytuneError(f"log is not CSV, {error}: `{path}`") from error
    return tally.result(fit[0].name, str(path))


def _known() -> str:
    return f"known are {', '.join(one.name for one in FORMATS)}; say which: --format"


def _text_of(path: Path) -> str:
    try:
        if not path.is_file():
            fault = "not a plain file" if path.exists() else "no such log"
            raise FlytuneError(f"{fault}: `{path}`")
        if path.stat().st_size > MAX_LOG_BYTES:
            limit = f"more than {MAX_LOG_BYTES // 2**20} MiB"
            raise FlytuneError(f"log is too large, {limit}: `{path}`")
        # Logs of several processes may break a character.
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        reason = error.strerror or error
        raise FlytuneError(f"cannot read the log, {reason}: `{path}`") from error
