"""The GEMMs that a command's processes run: how they come to count them, and what they
counted, as rows that `flytune shapes --shapes` reads.
"""

import json
import math
import os
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from flytune.caches.hook.flytune_start import CAPTURE_VARIABLE
from flytune.caches.install import python_path
from flytune.shapes.by_hand import TYPES
from flytune.shapes.gemm import FP4, LAYOUTS, Engine, GemmShape, Op
from flytune.shapes.quant_schemes import FP8_BLOCK
from flytune.shapes.strides import layouts

# Of flytune_capture's names of aten's operators.
_OPS: Mapping[str, Op] = {
    "mm": "mm",
    "addmm": "addmm",
    "addmm_": "addmm",
    "_addmm_activation": "addmm",
    "bmm": "bmm",
    "baddbmm": "bmm",
    "baddbmm_": "bmm",
    "_scaled_mm": "scaled_mm",
    "_scaled_mm_v2": "scaled_mm",
    "_grouped_mm": "grouped_mm",
    "_scaled_grouped_mm": "grouped_mm",
    "_scaled_grouped_mm_v2": "grouped_mm",
}
_COLUMNS = (
    *("op", "m", "n", "k", "batch", "groups", "a_dtype", "b_dtype", "out_dtype"),
    *("layout", "scaling", "bias", "count", "engine", "rule"),
)


@dataclass(frozen=True, slots=True)
class Captured:
    """What the processes of a command ran."""

    shapes: tuple[GemmShape, ...]
    """With `count` the calls in all processes; the most frequent first."""
    set_aside: Mapping[str, int]
    """Why calls are no GEMM that flytune plans, and how many of each."""
    processes: int
    """Those that ran any."""

    def to_lines(self) -> str:
        """Return JSON lines with the names of `flytune shapes --json`.

        What no process tells is left out, such as the module.
        """
        rows = (shape.to_row() for shape in self.shapes)
        kept = ({name: row[name] for name in _COLUMNS} for row in rows)
        return "".join(f"{json.dumps(row)}\n" for row in kept)


def capture_environment(folder: Path) -> dict[str, str]:
    """Return an environment whose Python processes count their GEMMs into a folder."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = python_path(environment)
    environment[CAPTURE_VARIABLE] = str(folder.absolute())
    return environment


def read_counts(folder: Path) -> Captured:
    """Join what the processes counted, also those that were killed.

    Raises:
        OSError: a file cannot be read.
    """
    counts: Counter[GemmShape] = Counter()
    aside: Counter[str] = Counter()
    files = sorted(folder.glob("*.jsonl"))
    for file in files:
        for row, calls in _rows(file):
            found = _shape(row)
            if isinstance(found, GemmShape):
                counts[found] += calls
            else:
                aside[found] += calls
    shapes = (replace(shape, count=calls) for shape, calls in counts.most_common())
    return Captured(tuple(shapes), dict(aside), len(files))


def _rows(file: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield what a process wrote of each GEMM, and its calls."""
    counts = struct.iter_unpack("=Q", file.with_suffix(".counts").read_bytes())
    for line, (calls,) in zip(file.read_text().splitlines(), counts, strict=False):
        try:
            row = json.loads(line)
        except ValueError:  # it was killed in the middle of the line
            return
        if calls:
            yield row, calls


def _shape(row: Mapping[str, Any]) -> GemmShape | str:
    """Return the GEMM of a row, or why it is none that is planned."""
    if "more" in row:
        return "too many distinct GEMMs in one process"
    op, (a, a_strides, a_dtype) = _OPS[row["op"]], row["a"]
    b, b_strides, b_dtype = row["b"]
    a_dtype, b_dtype, out = (
        name.removeprefix("torch.") for name in (a_dtype, b_dtype, row["out"])
    )
    strange = [name for name in (a_dtype, b_dtype, out) if name not in TYPES]
    if strange:
        return f"of {strange[0]}"
    m, k, n = a[-2], a[-1] * (2 if a_dtype == FP4 else 1), b[-1]
    if 0 in (*a, *b):
        return "a size is zero"
    if op == "grouped_mm" and len(b) != 3:
        return "groups of K, as in training"
    scaling = _scaling(row["scales"], a_dtype, math.prod(a[:-1]), n, k)
    if row["scales"] and scaling is None:
        return "scaled by blocks of another size"
    grouped = op == "grouped_mm"
    return GemmShape(
        op=op,
        m=math.prod(a[:-1]) if grouped else m,
        n=n,
        k=k,
        batch=1 if grouped else math.prod(a[:-2]),
        groups=b[0] if grouped else 0,
        a_dtype=a_dtype,
        b_dtype=b_dtype,
        out_dtype=out,
        layout=_layout(layouts((a, a_strides), (b, b_strides))),
        scaling=scaling,
        bias=op == "addmm" or row["bias"],
        engine=row["engine"] if row["engine"] in get_args(Engine) else "transformers",
        rule=f"captured on {row['device']}",
    )


def _layout(found: tuple[str, ...]) -> str:
    # Of what a size of 1 leaves open, the one that a linear's weight has; what has no
    # letters is copied to a row-major matrix first.
    return next((one for one in LAYOUTS if one in found), "NN")


def _scaling(
    scales: list[tuple[list[int], str]], a_dtype: str, m: int, n: int, k: int
) -> str | None:
    """Return the scheme of two scales, as `GemmShape` names it; None where unknown."""
    if not scales:
        return None
    (a, dtype), (b, _) = scales
    sizes = math.prod(a), math.prod(b)
    if dtype == "torch.float8_e8m0fnu":
        return "mxfp4" if a_dtype == FP4 else "mxfp8"
    if dtype == "torch.float8_e4m3fn":
        return "nvfp4" if a_dtype == FP4 else None
    if sizes == (1, 1):
        return "tensorwise"
    if sizes[0] == m and sizes[1] % n == 0 and sizes[1] // n in (1, b[0]):
        return "rowwise"
    blocks = -(-k // FP8_BLOCK)
    if sizes == (m * blocks, -(-n // FP8_BLOCK) * blocks):
        return "block128"
    return None
