"""A model of what a candidate costs, learned from all times that are known."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flytune.caches.columns import Status
from flytune.caches.records import TuningRecord
from flytune.tuner.candidate import ATEN
from flytune.tuner.smart.features import features, scale_us
from flytune.tuner.smart.limits import Limits

LEAST = 24
"""Times below which nothing can be learned."""
_BOOSTER: Mapping[str, Any] = {
    **{"max_iter": 200, "learning_rate": 0.1, "max_leaf_nodes": 31},
    **{"early_stopping": False},
}
_LEAF_SHARE = 50
_MOST_LEAF = 20
# Of a candidate that takes e times the fastest the weight is so many times e less: the
# model need not be right about the slow ones.
_FAR = 2.0


@dataclass(frozen=True, eq=False)
class Observed:
    """A record, and the device that it is of."""

    record: TuningRecord
    limits: Limits

    @functools.cached_property
    def features(self) -> list[float]:
        """What the model sees of it, beside its template."""
        return features(self.record, self.limits)

    @functools.cached_property
    def scale_us(self) -> float:
        """About how long its GEMM takes at best, in microseconds."""
        return scale_us(self.record, self.limits)


class CostModel:
    """Gradient-boosted trees over the logarithm of a time against its GEMM's scale.

    The same observations give the same model. A library's call has no parameters to
    learn from, and always a time: it is left out.
    """

    def __init__(self, known: Iterable[Observed], *, seed: int = 0) -> None:
        """Learn.

        Args:
            known: Records without a time say nothing.
        """
        timed = [observed for observed in known if is_observed(observed.record)]
        names = sorted({_template(one.record) for one in timed})
        self._templates = {name: at for at, name in enumerate(names)}
        self._booster = self._fit(timed, seed) if len(timed) >= LEAST else None

    @property
    def knows(self) -> bool:
        """Whether there was enough to learn from."""
        return self._booster is not None

    def predict_us(self, candidates: Sequence[Observed]) -> list[float]:
        """Return the expected microseconds of candidates that have parameters.

        Raises:
            ValueError: there was nothing to learn from.
        """
        if self._booster is None:
            raise ValueError("nothing to predict by")
        if not candidates:
            return []
        logs = self._booster.predict(list(map(self._row, candidates)))
        return [
            one.scale_us * math.exp(log)
            for one, log in zip(candidates, logs, strict=True)
        ]

    def _fit(self, timed: Sequence[Observed], seed: int) -> Any:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        logs = [math.log(_us(one.record) / one.scale_us) for one in timed]
        lists = [(problem_of(one.record), one.limits) for one in timed]
        best: dict[object, float] = {}
        for name, log in zip(lists, logs, strict=True):
            best[name] = min(log, best.get(name, math.inf))
        weights = [
            math.exp(-_FAR * (log - best[name]))
            for name, log in zip(lists, logs, strict=True)
        ]
        leaf = max(1, min(_MOST_LEAF, len(timed) // _LEAF_SHARE))
        booster = HistGradientBoostingRegressor(
            **_BOOSTER, min_samples_leaf=leaf, random_state=seed
        )
        rows = list(map(self._row, timed))
        # Its threads wait for each other thousands of times, in vain where a
        # compilation has their core.
        with threadpool_limits(1, user_api="openmp"):
            return booster.fit(rows, logs, sample_weight=weights)

    def _row(self, one: Observed) -> list[float]:
        return [float(self._templates.get(_template(one.record), -1)), *one.features]


def is_observed(record: TuningRecord) -> bool:
    """Whether a record has a time that the model can learn from."""
    timed = record.status is Status.OK and record.median_us is not None
    return timed and record.backend != ATEN


def _us(one: TuningRecord) -> float:
    assert one.median_us is not None, "only what is observed"
    return one.median_us


def _template(one: TuningRecord) -> str:
    return f"{one.backend} {one.template}"


def problem_of(one: TuningRecord) -> tuple[Any, ...]:
    """Return what a record's list computes, whoever calls it."""
    sizes = (one.m, one.n, one.k, one.batch, one.groups)
    return (one.op, sizes, one.a_dtype, one.b_dtype, one.layout, one.scaling, one.bias)
