"""What won for neighbouring shapes, which is tried first."""

import math
from collections.abc import Iterable, Sequence

from flytune.caches.records import TuningRecord
from flytune.tuner.smart.cost_model import Observed, is_observed, problem_of
from flytune.tuner.smart.geometry import Geometry, geometry_of

NEAREST = 3
"""Neighbouring lists that are asked."""
OF_EACH = 3
"""Of each so many that were the fastest."""
Kernel = tuple[str, str | None, Geometry]
"""Backend, template and sizes: the same kernel for another shape."""


def kernel_of(one: TuningRecord) -> Kernel | None:
    """Return a candidate without its shape; None where its parameters tell nothing."""
    geometry = geometry_of(one.backend, one.config)
    return None if geometry is None else (one.backend, one.template, geometry)


class Neighbours:
    """The fastest kernels of every list that is known."""

    def __init__(self, known: Iterable[Observed]) -> None:
        """Take what is known; of other devices too, where nothing nearer is."""
        lists: dict[object, list[TuningRecord]] = {}
        for one in known:
            if is_observed(one.record):
                name = (problem_of(one.record), one.limits)
                lists.setdefault(name, []).append(one.record)
        self._fastest = [
            sorted(some, key=lambda r: r.median_us or math.inf)[:OF_EACH]
            for some in lists.values()
        ]

    def of(self, one: TuningRecord) -> Sequence[Kernel]:
        """Return the kernels to try first, the nearest shape's fastest before others.

        Args:
            one: Any candidate of the list that is searched.
        """
        alike = [some for some in self._fastest if _kind(some[0]) == _kind(one)]
        alike.sort(key=lambda some: _distance(some[0], one))
        found = (kernel_of(record) for some in alike[:NEAREST] for record in some)
        return list(dict.fromkeys(kernel for kernel in found if kernel is not None))


def _kind(one: TuningRecord) -> object:
    return (one.op == "bmm", one.a_dtype, one.b_dtype, one.layout, one.scaling)


def _distance(a: TuningRecord, b: TuningRecord) -> float:
    groups = (max(a.groups, 1), max(b.groups, 1))
    pairs = ((a.m, b.m), (a.n, b.n), (a.k, b.k), (a.batch, b.batch), groups)
    return math.hypot(*(math.log2(left / right) for left, right in pairs))
