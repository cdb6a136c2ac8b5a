"""One model for several targets: a bundle each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builds import LLAMA
from click.testing import CliRunner
from fleets import ask

from flytune.shapes.errors import FlytuneError
from flytune.tuner import fleet_plan
from flytune.tuner.build_command import build_command
from flytune.tuner.cli import main
from flytune.tuner.fleet_plan import Asked, asked_targets, plan_fleet
from flytune.tuner.progress import Progress

TARGETS = ("h200", "mi355x")


def each(folder: Path, **changes: Any) -> list[Asked]:
    options = {"compile_only": True, "backends": ("ATEN", "TRITON"), **changes}
    (one,) = ask(folder, LLAMA, **options)
    return [replace(one, options=replace(one.options, target=t)) for t in TARGETS]


def test_a_model_is_planned_once_for_each_target(tmp_path: Path) -> None:
    models = plan_fleet(each(tmp_path), tmp_path, None, Progress())
    assert [model.name for model in models] == ["tiny-llama-h200", "tiny-llama-mi355x"]
    assert [model.plan.out.name for model in models] == [
        "tiny-llama.cuda-nvidia-h200-sm_90.tar.zst",
        "tiny-llama.cuda-amd-instinct-mi355x-gfx950.tar.zst",
    ]
    assert models[0].key != models[1].key
    assert models[0].plan.work != models[1].plan.work


def test_tables_of_a_fleet_may_be_of_one_model_and_several_targets(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        f"""
        [defaults]
        compile-only = true
        tokens = 8
        backends = ["ATEN", "TRITON"]
        threads = 1
        work = "{tmp_path / "work"}"
        [[models]]
        model = "{LLAMA}"
        target = ["h200", "mi355x"]
        [[models]]
        model = "{LLAMA}"
        target = "mi350x"
        """
    )
    planned: list[str] = []

    def note(*arguments: Any) -> None:
        models = plan_fleet(*arguments)
        planned.extend(f"{m.name} {m.plan.out.name}" for m in models)
        raise FlytuneError("planned")

    words = ["build", "--models", str(path), "--out", str(tmp_path / "out")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_plan, "plan_fleet", note)
        result = CliRunner().invoke(main, words)
    assert result.stderr.splitlines()[-1] == "error: planned"
    assert planned == [
        "tiny-llama-h200 tiny-llama.cuda-nvidia-h200-sm_90.tar.zst",
        "tiny-llama-mi355x tiny-llama.cuda-amd-instinct-mi355x-gfx950.tar.zst",
        "tiny-llama-mi350x tiny-llama.cuda-amd-instinct-mi350x-gfx950.tar.zst",
    ]


@pytest.mark.parametrize(
    ("out", "folder", "outs"),
    [
        (None, ".", [None, None]),
        ("bundles", "bundles", [None, None]),
        ("b/l-{target}", "b", ["b/l-h200", "b/l-mi355x"]),
        ("l.{target}.tar.zst", ".", ["l.h200.tar.zst", "l.mi355x.tar.zst"]),
    ],
)
def test_out_is_their_folder_or_names_each(
    out: str | None, folder: str, outs: list[str | None], tmp_path: Path
) -> None:
    wanted = None if out is None else Path(out)
    options = [replace(one.options, out=wanted) for one in each(tmp_path)]
    found, asked = asked_targets(options)
    assert str(found) == folder
    said = [one.options.out for one in asked]
    assert [path and str(path) for path in said] == outs


def test_one_name_for_several_bundles_is_refused(tmp_path: Path) -> None:
    words = ("--target", "h200", "--target", "mi355x", "--compile-only")
    out = tmp_path / "b.tar.zst"
    result = CliRunner().invoke(
        main, ["build", "--model", str(LLAMA), *words, "--out", str(out)]
    )
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: one name for the bundles of several targets: {out}\n"
        "hint: give a folder, or a name with {target} in it\n"
    )


def test_one_target_is_a_build_as_ever() -> None:
    options = build_command.options_of(["--model", str(LLAMA), "--target", "h200"])
    assert options.target == "h200"
    assert build_command.options_of(["--model", str(LLAMA)]).target is None
