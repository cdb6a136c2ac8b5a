"""What a log says of a program's GEMMs: facts, counts, and what cannot be."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from flytune.shapes.fields import MAX_SIZE
from flytune.shapes.gemm import GemmShape, Op


class ImpossibleRowError(Exception):
    """A row that cannot be; the message is the reason, the same for all of a kind."""


def size_of(text: str) -> int:
    """Return a size that is written in decimal digits.

    Raises:
        ImpossibleRowError: it is not, or has more digits than any size.
    """
    # int() alone takes `1_0`, `+8` and other scripts, and refuses thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ImpossibleRowError("a size is not a whole number")
    return int(text)


_MOST_DIGITS = len(str(MAX_SIZE))


class Gemm(Protocol):
    """What a `GemmShape` and a tuning record have in common."""

    @property
    def op(self) -> str: ...
    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def a_dtype(self) -> str: ...
    @property
    def b_dtype(self) -> str: ...
    @property
    def out_dtype(self) -> str: ...
    @property
    def layout(self) -> str: ...
    @property
    def scaling(self) -> str | None: ...
    @property
    def bias(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGemm:
    """A GEMM as far as a log tells.

    The names are those of `GemmShape`. None is what the log does not say; a plural
    holds all that it may be, and is empty where it may be anything.
    """

    ops: tuple[Op, ...]
    m: int | None = None
    n: int | None = None
    k: int | None = None
    batch: int = 1
    groups: int = 0
    a_dtypes: tuple[str, ...] = ()
    b_dtypes: tuple[str, ...] = ()
    out_dtypes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    scalings: tuple[str, ...] = ()
    bias: bool | None = None
    tokens: int | None = None
    """Of one forward pass, where the log gives them in place of `m`."""

    @classmethod
    def of_shape(cls, shape: GemmShape) -> "ObservedGemm":
        """Return the facts of a GEMM of which all is known."""
        return cls(
            ops=(shape.op,),
            m=shape.m,
            n=shape.n,
            k=shape.k,
            batch=shape.batch,
            groups=shape.groups,
            a_dtypes=(shape.a_dtype,),
            b_dtypes=(shape.b_dtype,),
            out_dtypes=(shape.out_dtype,),
            layouts=(shape.layout,),
            scalings=() if shape.scaling is None else (shape.scaling,),
            bias=shape.bias,
        )

    def may_be(self, gemm: Gemm) -> bool:
        """Whether nothing that the log says speaks against its being `gemm`."""
        sizes = ((self.m, gemm.m), (self.n, gemm.n), (self.k, gemm.k))
        words = (
            (self.a_dtypes, gemm.a_dtype),
            (self.b_dtypes, gemm.b_dtype),
            (self.out_dtypes, gemm.out_dtype),
            (self.scalings, gemm.scaling),
        )
        return (
            gemm.op in self.ops
            and (self.batch, self.groups) == (gemm.batch, gemm.groups)
            and all(said in (None, size) for said, size in sizes)
            and all(not said or word in said for said, word in words)
            and self.bias in (None, gemm.bias)
            and self._lies_as(gemm)
        )

    def _lies_as(self, gemm: Gemm) -> bool:
        """Whether the layouts agree; a side of one leaves a letter without meaning."""
        any_b, any_a = 1 in (gemm.n, gemm.k), 1 in (gemm.m, gemm.k)
        return not self.layouts or any(
            (any_b or one[0] == gemm.layout[0]) and (any_a or one[1] == gemm.layout[1])
            for one in self.layouts
        )

    def to_row(self) -> dict[str, Any]:
        """Return the JSON row."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    def __str__(self) -> str:
        lead = f"{self.batch}x" if self.batch > 1 else ""
        of = f"{self.tokens} tokens" if self.tokens is not None else _size(self.m)
        sizes = f"{lead}({of}, {_size(self.n)}, {_size(self.k)})"
        said = ("/".join(some) for some in (self.a_dtypes, self.scalings, self.layouts))
        groups = f"of {self.groups} experts" if self.groups else ""
        words = ("/".join(self.ops), sizes, groups, *said)
        return " ".join(filter(None, words))


def _size(size: int | None) -> str:
    return "?" if size is None else str(size)


@dataclass(frozen=True, slots=True)
class ObservedGemms:
    """What one file says."""

    format: str
    source: str
    rows: tuple[tuple[ObservedGemm, int], ...]
    """Each GEMM and how often it is said, the most frequent first."""
    set_aside: Mapping[str, int]
    """Why rows cannot be, and how many of each."""


class Tally:
    """Counts what a reader finds."""

    def __init__(self) -> None:
        self._gemms: Counter[ObservedGemm] = Counter()
        self._aside: Counter[str] = Counter()

    def add(self, gemm: ObservedGemm, count: int = 1) -> None:
        """Count a GEMM; set it aside where a size is zero."""
        sizes = (gemm.m, gemm.n, gemm.k, gemm.batch, gemm.tokens)
        if 0 in sizes:
            self.set_aside("a size is zero")
        else:
            self._gemms[gemm] += count

    def set_aside(self, reason: str) -> None:
        """Count a row that cannot be."""
        self._aside[reason] += 1

    def result(self, form: str, source: str) -> ObservedGemms:
        """Return what was counted."""
        rows, aside = self._gemms.most_common(), self._aside.most_common()
        return ObservedGemms(form, source, tuple(rows), dict(aside))
