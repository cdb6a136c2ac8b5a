import math
from dataclasses import replace
from operator import itemgetter

import pytest
from long_lists import BEST_US, H200, long_list, observed

from flytune.caches.columns import Status
from flytune.caches.records import TuningRecord
from flytune.tuner.candidate import ATEN, TuneTask
from flytune.tuner.smart.cost_model import CostModel, Observed
from flytune.tuner.smart.features import features
from flytune.tuner.smart.neighbours import Neighbours, kernel_of


def timed(task: TuneTask) -> list[TuningRecord]:
    return [one.record for one in observed(task)]


def test_what_was_learned_of_one_shape_orders_another() -> None:
    model = CostModel(observed(long_list(m=64)))
    other = observed(long_list(m=64, n=8192))
    others = [one for one in other if one.record.backend != ATEN]
    pairs = zip(model.predict_us(others), others, strict=True)
    ordered = [one.record.median_us for _, one in sorted(pairs, key=itemgetter(0))]
    assert BEST_US in ordered[: len(ordered) // 20]


def test_the_same_knowledge_says_the_same() -> None:
    known, other = observed(long_list()), observed(long_list(n=8192))[1:]
    first, second = (CostModel(known, seed=7) for _ in range(2))
    assert first.predict_us(other) == second.predict_us(other)


def test_nothing_is_learned_of_too_few_or_of_failures() -> None:
    known = observed(long_list())
    assert not CostModel(known[:10]).knows
    died = {"status": Status.FAULT, "reason": "died", "median_us": None}
    failed = [Observed(replace(one.record, **died), H200) for one in known]
    model = CostModel(failed)
    assert not model.knows
    with pytest.raises(ValueError, match="nothing to predict by"):
        model.predict_us([known[1]])


def test_a_candidate_without_parameters_has_features_all_the_same() -> None:
    first, second, *_ = timed(long_list())
    library, kernel = features(first, H200), features(second, H200)
    assert len(library) == len(kernel)
    assert any(map(math.isnan, library))
    assert all(map(math.isfinite, kernel))


def test_the_nearest_shapes_fastest_come_first() -> None:
    near, far = long_list(n=8192), long_list(m=1024, n=128)
    known = [*observed(far), *observed(near)]
    asked = timed(long_list())[1]
    first, *_ = Neighbours(known).of(asked)
    assert first == kernel_of(min(timed(near)[1:], key=lambda r: r.median_us or 0))


def test_the_same_shape_is_the_nearest_and_another_type_is_none() -> None:
    own = long_list()
    asked = timed(own)[1]
    known = [*observed(long_list(n=8192)), *observed(own)]
    first, *_ = Neighbours(known).of(asked)
    assert first == kernel_of(min(timed(own)[1:], key=lambda r: r.median_us or 0))
    others = [
        Observed(replace(r, a_dtype="float16", b_dtype="float16"), H200)
        for r in timed(long_list(n=8192))
    ]
    assert Neighbours(others).of(asked) == []
