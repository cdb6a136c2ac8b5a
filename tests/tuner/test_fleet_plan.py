"""What of a fleet is planned, refused and kept before anything is tuned."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builds import LLAMA, QWEN2
from fleets import ask, planned, publish

from flytune.caches.bundle import Bundle
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError
from flytune.tuner import plan
from flytune.tuner.fleet_plan import Asked, FleetModel, plan_fleet, plan_table
from flytune.tuner.plan import GIB
from flytune.tuner.progress import Progress


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "free_bytes", lambda: 1024 * GIB)


def test_models_are_planned_and_what_they_share_is_counted(tmp_path: Path) -> None:
    models = planned(tmp_path, LLAMA, QWEN2)
    slug = Target.here(threads=1).slug
    names = ["tiny-llama", "tiny-qwen2"]
    assert [model.name for model in models] == names
    for model in models:
        assert model.plan.out == tmp_path / f"{model.name}.{slug}.tar.zst"
        assert model.kept is None
    title, *rows = (line.split() for line in plan_table(models).splitlines())
    assert title == ["model", "GEMMs", "distinct", "shared", "bundle"]
    for row, model in zip(rows, models, strict=True):
        assert row[0] == model.name
        assert int(row[1]) == len(model.plan.shapes)
        assert int(row[1]) > int(row[2]) > int(row[3]) > 0
        assert row[4] == str(model.plan.out)


def test_a_models_ranks_are_in_its_name(tmp_path: Path) -> None:
    (one,) = ask(tmp_path, LLAMA, target="h200", compile_only=True, search="default")
    two = replace(one.options, tp=2)
    asked = [one, Asked("f.toml: [[models]] 2", two)]
    first, second = plan_fleet(asked, tmp_path, "fleet", Progress())
    assert (first.name, second.name) == ("tiny-llama", "tiny-llama-tp2")
    assert first.key == second.key
    assert first.plan.work != second.plan.work


def refused(folder: Path, asked: list[Asked]) -> str:
    with pytest.raises(FlytuneError) as caught:
        plan_fleet(asked, folder, "fleet", Progress())
    return str(caught.value)


def test_what_two_models_may_not_have_in_common(tmp_path: Path) -> None:
    one, two = ask(tmp_path, LLAMA, LLAMA)
    said = "f.toml: [[models]] 2: {} is that of [[models]] 1 too: "
    assert refused(tmp_path, [one, two]).startswith(said.format("name"))
    assert refused(tmp_path, [one, replace(two, name="b")]).startswith(
        said.format("build")
    )
    out = replace(two.options, tokens=(1,), out=tmp_path / "x" / ".." / "one.tar.zst")
    (tmp_path / "x").mkdir()
    first = replace(one, options=replace(one.options, out=tmp_path / "one.tar.zst"))
    assert refused(tmp_path, [first, replace(two, name="b", options=out)]).startswith(
        said.format("bundle")
    )
    assert "the bundle of all models has this name" in refused(
        tmp_path, [replace(one, name="fleet")]
    )


def test_one_model_that_cannot_be_planned_ends_the_fleet_first(tmp_path: Path) -> None:
    one, two = ask(tmp_path, LLAMA, QWEN2)
    broken = replace(two.options, from_bundle=tmp_path / "absent")
    said = refused(tmp_path, [one, replace(two, options=broken)])
    assert str(tmp_path / "absent") in said
    absent = replace(two.options, out=tmp_path / "none" / "b")
    said = refused(tmp_path, [one, replace(two, options=absent)])
    assert said == f"no directory for the output: {tmp_path}/none: {two.where}"
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_of_this_very_build_is_kept(tmp_path: Path) -> None:
    (model,) = planned(tmp_path, LLAMA)
    publish(model)
    (again,) = planned(tmp_path, LLAMA)
    assert again.kept is not None
    assert again.kept.digest == Bundle.open(model.plan.out).digest
    assert plan_table([again]).endswith(", kept")
    # Signed by nobody, where it is to be signed.
    model.plan.out.unlink()
    publish(replace(model, prepared=replace(model.prepared, options=unsigned(model))))
    said = refused(tmp_path, ask(tmp_path, LLAMA))
    assert "is not signed by a key that is trusted here" in said
    (kept,) = planned(tmp_path, LLAMA, sign=False)
    assert kept.kept is not None


def unsigned(model: FleetModel) -> Any:
    return replace(model.options, sign=False)


@pytest.mark.parametrize(
    ("changes", "asked", "why"),
    [
        ({}, {"tokens": (1, 16)}, "is of another build"),
        ({}, {"bake": "model"}, "is of another build"),
        ({}, {"exclude": frozenset({"x"})}, "is of another build"),
        ({"provenance": {}}, {}, "is of another build"),
        ({"verify": {"ok": False}}, {}, "does not hit"),
    ],
)
def test_an_output_of_something_else_is_refused(
    tmp_path: Path, changes: dict[str, Any], asked: dict[str, Any], why: str
) -> None:
    (model,) = planned(tmp_path, LLAMA)
    publish(model, **changes)
    said = refused(tmp_path, ask(tmp_path, LLAMA, **asked))
    assert said.startswith(f"output exists, and {why}: {model.plan.out}")
    model.plan.out.write_bytes(b"no bundle")
    assert str(model.plan.out) in refused(tmp_path, ask(tmp_path, LLAMA))
