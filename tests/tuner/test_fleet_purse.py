"""One budget, divided among the models of a fleet."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builds import LLAMA, QWEN2
from fleets import planned

from flytune.tuner import account
from flytune.tuner import plan as stage
from flytune.tuner.budget import Meter, parse_budget
from flytune.tuner.fleet_purse import FleetPurse
from flytune.tuner.plan import GIB
from flytune.tuner.progress import Progress


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "free_bytes", lambda: 1024 * GIB)
    monkeypatch.setattr(account, "load_now", lambda: 1.0)


def test_all_models_have_one_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    meter = Meter(lambda: now)
    models = planned(tmp_path, LLAMA, QWEN2, budget=parse_budget("10m"))
    purse = FleetPurse(meter)
    first, second = (purse.open(model.prepared, 1.0, model.name) for model in models)
    purse.say(Progress())
    kept_s = first.first.after_tuning_s + second.first.after_tuning_s
    said = capsys.readouterr().err
    assert "estimate: about 4 min" in said or "estimate: about 3 min" in said
    assert "budget: " not in said
    purse.begin(first)
    # Both are tuned for as long, and both bakes are kept for.
    assert first.allowance.tuning_s() == pytest.approx((600 - kept_s) / 2)
    now = 100.0
    purse.begin(second)
    assert second.allowance.tuning_s() == pytest.approx(600 - kept_s - 100)
    purse.begin(second)
    assert second.allowance.tuning_s() == pytest.approx(600 - kept_s - 100)
    purse.close(Progress())
    assert "took 1 min 40 s; estimated " in capsys.readouterr().err


def test_what_models_share_is_expected_once(tmp_path: Path) -> None:
    models = planned(tmp_path, LLAMA, QWEN2, budget=parse_budget("10m"))
    assert models[0].key == models[1].key
    purse = FleetPurse(Meter(lambda: 0.0))
    first, second = (purse.open(model.prepared, 1.0, model.key) for model in models)
    # Their attention is the same, and no other GEMM has a choice.
    assert first.first.parts["tune"] > 0
    assert second.first.parts["tune"] == 0
    kept_s = first.first.after_tuning_s + second.first.after_tuning_s
    purse.begin(first)
    assert first.allowance.tuning_s() == pytest.approx(600 - kept_s)


def test_a_bake_that_turned_out_slower_is_kept_for(tmp_path: Path) -> None:
    models = planned(tmp_path, LLAMA, QWEN2, budget=parse_budget("30m"))
    purse = FleetPurse(Meter(lambda: 0.0))
    first, second = (purse.open(model.prepared, 1.0, model.key) for model in models)
    purse.begin(first)
    before_s = first.allowance.reserve_s
    # Listing took far longer than was expected, and so will the bake.
    progress: Any = SimpleNamespace(
        parts=lambda: (("enumerate", 3600.0),), say=lambda _: None
    )
    farm: Any = SimpleNamespace(capacity=lambda: (1, 0))
    first.begin_tuning([], farm, first.heat({}, ()), progress)
    assert first.allowance.reserve_s > before_s
    assert first.refined.after_tuning_s > first.first.after_tuning_s
    purse.begin(second)
    kept_s = first.refined.after_tuning_s + second.first.after_tuning_s
    assert second.allowance.reserve_s == pytest.approx(kept_s)


def test_a_budget_that_is_short_says_so_before_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    purse = FleetPurse(Meter(lambda: 0.0))
    for model in planned(tmp_path, LLAMA, budget=parse_budget("60s")):
        opened = purse.open(model.prepared, 1.0, model.key)
    purse.say(Progress())
    said = capsys.readouterr().err
    assert "budget: 60s is less than it takes to tune nothing, about " in said
    first, expected = opened.first, opened.expected
    assert expected.parts["tune"] == 0
    assert expected.seconds == pytest.approx(first.seconds - first.parts["tune"])
