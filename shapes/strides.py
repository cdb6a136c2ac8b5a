"""How a matrix lies in memory, in BLAS's letters."""

from collections.abc import Sequence


def letters(sizes: Sequence[int], strides: Sequence[int]) -> str:
    """Return the BLAS letters that the last two strides allow.

    "N" is row-major, "T" column-major; both where a size of 1 leaves its stride without
    meaning, none where a GEMM would copy the matrix first.
    """
    rows, columns = sizes[-2:]
    row_stride, column_stride = strides[-2:]
    row_major = "N" if column_stride == 1 or columns == 1 else ""
    column_major = "T" if row_stride == 1 or rows == 1 else ""
    return row_major + column_major


def layouts(
    a: tuple[Sequence[int], Sequence[int]], b: tuple[Sequence[int], Sequence[int]]
) -> tuple[str, ...]:
    """Return what `GemmShape.layout` may be, of (sizes, strides) of A and of B."""
    return tuple(y + x for y in letters(*b) for x in letters(*a))
