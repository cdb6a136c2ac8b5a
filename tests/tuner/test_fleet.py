"""A fleet of models: what fails, what is kept, and what is joined."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builds import LLAMA, QWEN2
from click.testing import CliRunner
from fleets import ask, publish
from small_bundles import bare_manifest

from flytune.caches.bundle import Bundle
from flytune.caches.keyring import own_key
from flytune.caches.merge_manifest import merged_from
from flytune.caches.packing import pack
from flytune.caches.target import Target
from flytune.shapes.errors import FlytuneError
from flytune.tuner import fleet, plan
from flytune.tuner.build import Prepared, Tuned
from flytune.tuner.build_identity import build_identity
from flytune.tuner.cli import main
from flytune.tuner.fleet_merge import merge_fleet
from flytune.tuner.fleet_plan import FleetModel
from flytune.tuner.plan import GIB
from flytune.tuner.progress import Progress
from flytune.tuner.publish import Built

SHORT = {"asked": "1m", "lists": 3, "unreached": 2, "cut": 0, "share": 0.5}
TITLES = ("model", "result", "lists", "timed", "shared")


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "free_bytes", lambda: 1024 * GIB)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Tune and bake nothing; a model that is named fails in the stage that it says."""
    failing: dict[str, str] = {}
    models: dict[Path, FleetModel] = {}
    planned_by = fleet.build_fleet

    def noted(some: tuple[FleetModel, ...], *rest: Any) -> Any:
        models.update({model.plan.work: model for model in some})
        return planned_by(some, *rest)

    def tuned(prepared: Prepared, *rest: Any) -> Any:
        model, sharing = models[prepared.plan.work], rest[3]
        model.progress.begin("tune")
        if failing.get(model.name) == "tune":
            raise FlytuneError("no candidate survived", hint="look")
        sharing.choices, sharing.timed = {"a", "b"}, {"a"}
        sharing.taken = {"b"}
        return Tuned(prepared, ())  # type: ignore[arg-type]

    def finished(tuned: Any, _: Progress) -> Built:
        model = models[tuned.made.plan.work]
        if failing.get(model.name) == "bake":
            raise FlytuneError("the bake does not settle")
        if failing.get(model.name) == "stop":
            raise KeyboardInterrupt
        if failing.get(model.name) == "verify":
            built = publish(model, verify={"ok": False})
            verdict = replace(built.verdict, failures=("it compiled",))  # type: ignore[type-var]
            return replace(built, verdict=verdict)
        if failing.get(model.name) == "short":
            build = build_identity(model.plan, model.options)
            return publish(model, provenance={"build": build, "budget": SHORT})
        return publish(model)

    for name, fake in (("build_fleet", noted), ("tune", tuned), ("finish", finished)):
        monkeypatch.setattr(fleet, name, fake)
    return failing


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    path = folder / "fleet.toml"
    tables = [f'[[models]]\nmodel = "{model}"\n' for model in (LLAMA, QWEN2)]
    path.write_text("[defaults]\ntokens = [1, 8]\nthreads = 1\n" + "".join(tables))
    work = ("--work", str(folder / "work"))
    arguments = ["build", "--models", str(path), "--out", str(folder / "out"), *work]
    result = CliRunner().invoke(main, [*arguments, *words])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def rows_of(stdout: str) -> list[list[str]]:
    """The rows of the summary: name, result, lists, timed and shared."""
    lines = [line.split() for line in stdout.splitlines()]
    assert lines[0] == [*TITLES, "seconds", "bundle"]
    return [line[:5] for line in lines[1:] if line[0] not in ("of", "budget")]


@pytest.mark.parametrize("stage", ["tune", "bake"])
def test_a_model_that_fails_costs_no_other_and_is_built_by_the_same_command(
    tmp_path: Path, faked: dict[str, str], stage: str
) -> None:
    faked["tiny-llama"] = stage
    code, stdout, stderr = run(tmp_path)
    assert code == 1
    # What was tuned is told, and what was not is not.
    counts = ["0", "0", "0"] if stage == "tune" else ["2", "1", "1"]
    assert rows_of(stdout) == [
        ["tiny-llama", "failed", *counts],
        ["tiny-qwen2", "built", "2", "1", "1"],
    ]
    assert "of all" not in stdout
    (error,) = re.findall("^error: .*$", stderr, re.MULTILINE)
    assert error.startswith("error: tiny-llama: ")
    assert ("hint: look" in stderr) == (stage == "tune")
    faked.clear()
    code, stdout, stderr = run(tmp_path)
    assert code == 0, stderr
    assert rows_of(stdout) == [
        ["tiny-llama", "built", "2", "1", "1"],
        ["tiny-qwen2", "kept", "-", "-", "-"],
    ]
    out = tmp_path / "out" / f"fleet.{Target.here(threads=1).slug}.tar.zst"
    assert stdout.endswith(f"of all  {out}, not verified: flytune verify {out}\n")
    bundles = [path for path in (tmp_path / "out").iterdir() if path != out]
    digests = {Bundle.open(path).digest for path in bundles}
    assert (len(digests), set(merged_from(Bundle.open(out)))) == (2, digests)
    merged = Bundle.open(out).digest
    code, _, stderr = run(tmp_path)
    assert code == 0
    assert f"merge: kept: {out} is of these very bundles" in stderr
    assert Bundle.open(out).digest == merged
    # One that somebody has removed is built and joined again.
    bundles[0].unlink()
    code, stdout, stderr = run(tmp_path)
    assert code == 0, stderr
    assert sorted(row[1] for row in rows_of(stdout)) == ["built", "kept"]
    # What was merged of other builds is nobody's to replace.
    code, stdout, stderr = run(tmp_path, "--search", "exhaustive")
    assert (code, stdout) == (1, "")
    assert "output exists, and is of another build" in stderr


def test_a_bundle_that_misses_is_written_and_not_joined(
    tmp_path: Path, faked: dict[str, str]
) -> None:
    faked["tiny-qwen2"] = "verify"
    code, stdout, stderr = run(tmp_path)
    assert code == 1
    assert [row[1] for row in rows_of(stdout)] == ["built", "misses"]
    assert "tiny-qwen2:         it compiled" in stderr
    assert "of all" not in stdout
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_a_fleet_that_is_stopped_goes_on(tmp_path: Path, faked: dict[str, str]) -> None:
    faked["tiny-qwen2"] = "stop"
    code, stdout, stderr = run(tmp_path)
    assert (code, stdout) == (130, "")
    assert stderr.endswith("error: stopped: the same command goes on from here\n")
    faked.clear()
    code, stdout, _ = run(tmp_path)
    assert code == 0
    assert [row[1] for row in rows_of(stdout)] == ["kept", "built"]


def test_what_a_budget_left_no_time_for_is_said_at_the_end(
    tmp_path: Path, faked: dict[str, str]
) -> None:
    faked["tiny-llama"] = "short"
    code, stdout, _ = run(tmp_path)
    assert code == 0
    assert [line for line in stdout.splitlines() if line.startswith("budget")] == [
        "budget  tiny-llama: 1m is too little: 2 of 3 lists were not reached and left "
        "to the library: 50 % of the GEMMs' estimated time; the same command goes on "
        "from here"
    ]


def test_what_does_not_go_together_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundles = []
    for number, threads in enumerate((1, 2, 2)):
        target = Target.here(threads=threads).to_json()
        made = bare_manifest(
            model={"name": f"m{number}"}, program={"kind": str(number)}, target=target
        )
        staged = tmp_path / f"s{number}"
        staged.mkdir()
        (staged / f"f{number}").write_text("x")
        out = pack(staged, made, tmp_path / f"{number}.tar.zst", keys=[own_key()])
        bundles.append((f"m{number}", Bundle.open(out)))
    (asked,) = ask(tmp_path, LLAMA)
    rest = (tmp_path, "all", asked.options, Progress())
    out = merge_fleet(bundles, *rest)
    assert out is not None
    # The most that go together, though the first is none of them.
    assert set(merged_from(Bundle.open(out))) == {b.digest for _, b in bundles[1:]}
    said = capsys.readouterr().err
    assert "merge: m0 is not in the bundle of all: bundles are for different" in said
    assert merge_fleet(bundles[:2], *rest) is None
    assert merge_fleet([], *rest) is None
