"""How a template's kernel cuts its GEMM, read from a candidate's parameters."""

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from flytune.tuner.candidate import FLYDSL, TRITON

_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of one kernel."""

    block_m: int
    """Rows of the result that one program of the grid computes."""
    block_n: int
    """Columns of it."""
    block_k: int
    """Elements of the reduced size that one step of its loop takes."""
    stages: int
    """Steps whose operands are under way at once."""
    warps: int
    """Warps, or waves, of a program."""
    group_m: int
    """Rows of programs that run close in time, for the cache's sake; 0 for no order."""
    variant: tuple[int, int, int] = (0, 0, 0)
    """AMD's instruction size, waves a unit and packing along the reduced size."""

    def steps_to(self, other: Self) -> float:
        """Return how unlike another is: a doubling is a step, and so is a stage."""
        pairs = (
            *((self.block_m, other.block_m), (self.block_n, other.block_n)),
            *((self.block_k, other.block_k), (self.warps, other.warps)),
            (max(self.group_m, 1), max(other.group_m, 1)),
        )
        doublings = sum(abs(math.log2(a / b)) for a, b in pairs)
        return doublings + abs(self.stages - other.stages)


@functools.cache
def geometry_of(backend: str, config: str) -> Geometry | None:
    """Read a candidate's parameters; None where they do not tell.

    Args:
        config: Of the candidate, as JSON: Triton's as Inductor's `info_dict` names
            them, FlyDSL's as the constants of its template.
    """
    given = json.loads(config)
    readers = {TRITON: _of_triton, FLYDSL: _of_flydsl}
    if backend not in readers:
        return None
    try:
        found = readers[backend](given)
    except (KeyError, IndexError):
        return None
    # Inductor writes -1 for a tile that its template does not tell.
    sizes = (found.block_m, found.block_n, found.block_k, found.stages, found.warps)
    return found if min(sizes) > 0 else None


def _of_triton(given: Mapping[str, str]) -> Geometry:
    # "(block_m, block_k, block_n)"
    tile = _numbers(given["tile_shape"])
    return Geometry(
        block_m=tile[0],
        block_n=tile[2],
        block_k=tile[1],
        stages=_number(given["num_stages"]),
        warps=_number(given["num_warps"]),
        group_m=_number(given.get("GROUP_M", "0")),
        variant=(
            _number(given.get("matrix_instr_nonkdim", "0")),
            _number(given.get("waves_per_eu", "0")),
            _number(given.get("kpack", "0")),
        ),
    )


def _of_flydsl(given: Mapping[str, str]) -> Geometry:
    return Geometry(
        block_m=_number(given["TILE_M"]),
        block_n=_number(given["TILE_N"]),
        block_k=_number(given["TILE_K"]),
        stages=_number(given["STAGES"]),
        warps=_number(given["M_WAVES"]) * _number(given["N_WAVES"]),
        group_m=_number(given.get("GROUP_M", "0")),
    )


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(text)]


def _number(text: str) -> int:
    return _numbers(text)[0]
