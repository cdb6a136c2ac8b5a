"""A bundle that a budget cut short gives way to the same build, and to no other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builds import LLAMA, QWEN2
from fleets import ask, planned, publish
from small_bundles import bare_manifest

from flytune.caches.bundle import Bundle
from flytune.caches.merge_manifest import merged_from
from flytune.shapes.errors import FlytuneError
from flytune.tuner import plan as stage
from flytune.tuner.fleet_merge import merge_fleet
from flytune.tuner.going_on import check_place, goes_on, publish_at
from flytune.tuner.plan import GIB
from flytune.tuner.progress import Progress

CUT = {"coverage": {"over_budget": ["bmm 32x(16, 128, 16)"]}}


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "free_bytes", lambda: 1024 * GIB)


@pytest.mark.parametrize("out", ["b.tar.zst", "b"])
def test_the_same_build_takes_its_place(tmp_path: Path, out: str) -> None:
    (model,) = planned(tmp_path, LLAMA)
    plan = replace(model.plan, out=tmp_path / out)
    publish(replace(model, prepared=replace(model.prepared, plan=plan)), **CUT)
    assert goes_on(plan, model.options)
    check_place(plan, model.options)
    staged = tmp_path / "new"
    (staged / "inductor").mkdir(parents=True)
    (staged / "inductor" / "new").write_text("new")
    publish_at(staged, bare_manifest(model={"name": "new"}), plan, model.options, [])
    bundle = Bundle.open(plan.out)
    bundle.check()
    assert list(bundle.manifest.files) == ["inductor/new"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".b")]


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, {}),
        (CUT, {"search": "exhaustive"}),
        (CUT | {"provenance": {}}, {}),
    ],
)
def test_nothing_else_does(
    tmp_path: Path, changes: dict[str, Any], asked: dict[str, Any]
) -> None:
    (model,) = planned(tmp_path, LLAMA)
    publish(model, **changes)
    (one,) = ask(tmp_path, LLAMA, **asked)
    plan = model.plan
    if asked:
        (tmp_path / "other").mkdir()
        (other,) = planned(tmp_path / "other", LLAMA, **asked)
        plan = replace(other.plan, out=plan.out)
    before = plan.out.read_bytes()
    with pytest.raises(FlytuneError, match="output exists"):
        check_place(plan, one.options)
    with pytest.raises(FlytuneError, match="output exists"):
        publish_at(tmp_path / "work", bare_manifest(), plan, one.options, [])
    assert plan.out.read_bytes() == before


def test_a_fleet_goes_on_with_what_was_cut_short(tmp_path: Path) -> None:
    (model,) = planned(tmp_path, LLAMA)
    publish(model, **CUT)
    (again,) = planned(tmp_path, LLAMA)
    assert again.kept is None
    assert again.plan.out == model.plan.out


def test_a_fleet_goes_on_whose_bundles_are_merged_already(tmp_path: Path) -> None:
    first, second = planned(tmp_path, LLAMA, QWEN2)
    publish(first, **CUT)
    publish(second)
    bundles = [(m.name, Bundle.open(m.plan.out)) for m in (first, second)]
    out = merge_fleet(bundles, tmp_path, "fleet", first.options, Progress())
    assert out is not None
    kept = [model.kept is not None for model in planned(tmp_path, LLAMA, QWEN2)]
    assert kept == [False, True]
    # What has taken a place since was killed before it was merged.
    first.plan.out.unlink()
    publish(first)
    models = planned(tmp_path, LLAMA, QWEN2)
    bundles = [(m.name, m.kept) for m in models if m.kept is not None]
    assert len(bundles) == 2
    assert merge_fleet(bundles, tmp_path, "fleet", first.options, Progress()) == out
    assert set(merged_from(Bundle.open(out))) == {b.digest for _, b in bundles}
    # So is what somebody has removed.
    first.plan.out.unlink()
    assert [model.kept is not None for model in planned(tmp_path, LLAMA, QWEN2)] == kept
    # A fleet without the one that goes on has not made it.
    with pytest.raises(FlytuneError, match="was not merged of this fleet's bundles"):
        planned(tmp_path, QWEN2)
